"""One suite for every declaration of the served model: the twin's, the no-op's, the GPU model's and NVIDIA's.

What the client may send is taken from the bytes that it sends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from fakes.manifest import fake_manifest
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine
from tritonclient.grpc import model_config_pb2, service_pb2

from trtb.model_repo import contract, pbtxt, render
from trtb.model_repo.contract import TensorSpec
from trtb.runner.launching.launch import ServerConfig
from trtb.runner.server import TritonServer
from trtb.runner.transport import EngineRequest, Retention
from trtb.runner.triton_client import TritonTransport
from trtb.runner.triton_messages import serialise

FACTS = json.loads((Path(__file__).parents[1] / "data" / "tensorrt_llm_tensors.json").read_text())
# of the types that NVIDIA's template leaves open, those that its tests choose
CHOSEN = {
    "template:encoder_input_features_data_type": "FP16",
    "template:logits_datatype": "FP32",
    "template:prompt_embedding_table_data_type": "FP16",
}
PLAIN = EngineRequest("run-1", [5, 6, 7], max_tokens=9, end_id=2, pad_id=3)
OPTIONS: dict[str, Any] = {
    "stop_words": ((7, 8), (9,)),
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.25,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "min_tokens": 4,
    "seed": 2**64 - 1,
    "streaming": True,
    "num_sequences": 3,
    "log_probs": True,
    "guide": ("json", "{}"),
    "block_counts": True,
    "retention": Retention(((0, 2, 80), (2, 3, 10)), 10),
}
REQUESTS = {
    "plain": PLAIN,
    **{name: replace(PLAIN, **{name: value}) for name, value in OPTIONS.items()},
    "everything": replace(PLAIN, **OPTIONS),
}


@dataclass(frozen=True)
class Declared:
    """A tensor as a model declares it."""

    data_type: str
    dims: tuple[int, ...]
    is_optional: bool
    is_ragged: bool
    is_reshaped: bool  # to a scalar


@dataclass(frozen=True)
class Declaration:
    inputs: dict[str, Declared]
    outputs: dict[str, Declared]

    @property
    def can_retain(self) -> bool:
        return all(spec.name in self.inputs for spec in contract.RETENTION_INPUTS)


def of_model(repository: Path) -> Declaration:
    config = pbtxt.read(repository / "tensorrt_llm" / "config.pbtxt")
    assert config.model_transaction_policy.decoupled

    def read(tensor: Any) -> Declared:
        kind = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
        assert not tensor.reshape.shape
        return Declared(
            kind, tuple(tensor.dims), getattr(tensor, "optional", False),
            getattr(tensor, "allow_ragged_batch", False), tensor.HasField("reshape"),
        )  # fmt: skip

    return Declaration(*({each.name: read(each) for each in kind} for kind in (config.input, config.output)))


def of_facts() -> Declaration:
    def read(row: dict[str, Any]) -> Declared:
        return Declared(
            CHOSEN.get(row["data_type"], row["data_type"]), tuple(row["dims"]), row.get("optional", False),
            row.get("allow_ragged_batch", False), row.get("scalar", False),
        )  # fmt: skip

    return Declaration(*({row["name"]: read(row) for row in FACTS[kind]} for kind in ("inputs", "outputs")))


def of_spec(spec: TensorSpec, *, is_input: bool) -> Declared:
    if not is_input:
        return Declared(spec.data_type, spec.dims, False, False, False)
    return Declared(spec.data_type, spec.dims, spec.optional, spec.ragged, spec.scalar)


def render_gpu(folder: Path) -> Path:
    manifest = fake_trtllm_manifest()
    engine = write_trtllm_engine(folder / "engine", manifest)
    render.render(engine, manifest, folder / "repository", render.DeployConfig())
    return folder / "repository"


@pytest.fixture(scope="module", params=["openvino", "noop", "tensorrt_llm", "nvidia"])
def declaration(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Declaration:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "nvidia":
        return of_facts()
    if request.param == "tensorrt_llm":
        return of_model(render_gpu(folder))
    if request.param == "noop":
        render.render_noop(folder / "repository")
    else:
        (folder / "engine").mkdir()
        deploy = render.DeployConfig(num_kv_blocks=8)
        render.render(folder / "engine", fake_manifest(), folder / "repository", deploy)
    return of_model(folder / "repository")


def test_every_tensor_of_the_contract_is_declared_as_the_contract_says(declaration):
    for spec in contract.INPUTS:
        assert declaration.inputs[spec.name] == of_spec(spec, is_input=True)
    for spec in contract.OUTPUTS:
        assert declaration.outputs[spec.name] == of_spec(spec, is_input=False)


def test_retention_is_for_models_that_declare_it_and_only_tensorrt_llms_does(declaration, request):
    assert declaration.can_retain == (request.node.callspec.id in ("tensorrt_llm", "nvidia"))
    if declaration.can_retain:
        for spec in contract.RETENTION_INPUTS:
            assert declaration.inputs[spec.name] == of_spec(spec, is_input=True)


def test_nothing_that_every_request_must_have_is_unknown_to_the_client(declaration):
    required = {name for name, tensor in declaration.inputs.items() if not tensor.is_optional}
    assert required == {spec.name for spec in contract.INPUTS if not spec.optional}


def test_the_gpu_model_declares_all_that_nvidias_does_and_nothing_else(tmp_path):
    assert of_model(render_gpu(tmp_path)) == of_facts()


def test_the_requests_here_have_every_option_that_a_request_can_have():
    by_default = {
        field.name: field.default for field in fields(EngineRequest) if field.default is not MISSING
    }
    assert OPTIONS.keys() == by_default.keys()
    assert all(OPTIONS[name] != default for name, default in by_default.items())


def sent(request: EngineRequest) -> Any:
    return service_pb2.ModelInferRequest.FromString(serialise(request))


@pytest.mark.parametrize("name", REQUESTS)
def test_every_tensor_that_the_client_sends_is_declared_with_its_type_and_shape(declaration, name):
    message = sent(REQUESTS[name] if declaration.can_retain else replace(REQUESTS[name], retention=None))
    for tensor in message.inputs:
        declared = declaration.inputs[tensor.name]
        assert tensor.datatype == {"STRING": "BYTES"}.get(declared.data_type, declared.data_type), tensor.name
        batch, *shape = tensor.shape
        assert batch == 1
        assert len(shape) == len(declared.dims), tensor.name
        assert all(dim in (-1, size) for dim, size in zip(declared.dims, shape, strict=True)), tensor.name
    required = {each for each, tensor in declaration.inputs.items() if not tensor.is_optional}
    assert required <= {tensor.name for tensor in message.inputs}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_output_that_the_client_asks_for_is_declared(declaration, name):
    assert {tensor.name for tensor in sent(REQUESTS[name]).outputs} <= declaration.outputs.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_changes_what_is_sent(name):
    assert serialise(REQUESTS[name]) != serialise(PLAIN)
    assert len(sent(REQUESTS["everything"]).inputs) > len(sent(REQUESTS[name]).inputs)


@pytest.fixture(scope="module")
def gpu_declaration_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """The real tritonserver with the GPU model's configuration, the no-op's code behind it."""
    from trtb.tools.bench.noop import wait_ready

    folder = tmp_path_factory.mktemp("gpu-declaration")
    repository = render_gpu(folder)
    path = repository / "tensorrt_llm" / "config.pbtxt"
    config = pbtxt.read(path)
    config.backend = "python"
    pbtxt.write(path, config)
    render.render_noop(folder / "noop")
    code = folder / "noop" / "tensorrt_llm" / "1" / "model.py"
    code.rename(repository / "tensorrt_llm" / "1" / "model.py")
    server = TritonServer(ServerConfig(repository, folder, folder / "server.log", exit_timeout_s=5))
    server.start()
    try:
        asyncio.run(wait_ready(server))
        yield server
    finally:
        asyncio.run(server.stop())


@pytest.mark.triton
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_triton_itself_takes_the_gpu_models_configuration_and_the_clients_requests(
    gpu_declaration_server, name
):
    async def main() -> dict[str, str]:
        transport = TritonTransport(gpu_declaration_server.endpoint)
        try:
            parameters = (await transport.served_model(timeout_s=20)).parameters
            stream = transport.open_stream()
            await stream.send(REQUESTS[name])
            chunk = await asyncio.wait_for(stream.receive(), 20)
            assert (len(chunk.token_ids), chunk.is_final) == (9, True)
        finally:
            await transport.close()
        return parameters

    parameters = asyncio.run(main())
    assert parameters["engine_id"] == fake_trtllm_manifest().engine_id
    assert parameters["tokenizer_dir"] == ""
    assert parameters["kv_cache_free_gpu_mem_fraction"] == "0.9"
