"""An engine rendered as a Triton model repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes.manifest import fake_manifest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from trtb.build.errors import ConfigError
from trtb.model_repo import pbtxt, render
from trtb.model_repo.trtllm_parameters import parse_parameters

GOLDEN = Path(__file__).parents[1] / "golden"
DEPLOY = render.DeployConfig(num_kv_blocks=64, max_queue_size=7, deterministic=True)


def rendered(tmp_path: Path, **fields) -> Path:
    engine = tmp_path / "engine"
    engine.mkdir()
    repository = tmp_path / "repository"
    render.render(engine, fake_manifest(**fields), repository, DEPLOY)
    return repository


def normalised(config_path: Path) -> str:
    """Return the file's text as Triton's own parser understands it, without this machine's paths."""
    config = text_format.Parse(config_path.read_text(), model_config_pb2.ModelConfig())
    if "engine_dir" in config.parameters:
        config.parameters["engine_dir"].string_value = "ENGINE"
    return text_format.MessageToString(config)


def test_the_openvino_repository_is_the_golden_one(tmp_path):
    config = rendered(tmp_path) / "tensorrt_llm" / "config.pbtxt"
    assert normalised(config) == (GOLDEN / "config.pbtxt").read_text()


def test_the_no_op_repository_speaks_the_same_contract(tmp_path):
    render.render_noop(tmp_path / "noop")
    noop = pbtxt.read(tmp_path / "noop" / "tensorrt_llm" / "config.pbtxt")
    golden = pbtxt.read(GOLDEN / "config.pbtxt")
    assert list(noop.input) == list(golden.input)
    assert list(noop.output) == list(golden.output)
    assert noop.model_transaction_policy.decoupled
    assert (tmp_path / "noop" / "tensorrt_llm" / "1" / "model.py").is_file()


def test_a_repository_has_its_models_code_and_no_leftovers(tmp_path):
    model = rendered(tmp_path) / "tensorrt_llm"
    assert sorted(path.name for path in model.iterdir()) == ["1", "config.pbtxt"]
    assert sorted(path.name for path in (model / "1").iterdir()) == [
        "model.py",
        "openvino_engine.py",
        "openvino_metrics.py",
        "openvino_requests.py",
    ]
    for path in (model / "1").iterdir():
        compile(path.read_text(), path.name, "exec")


def test_an_engine_that_holds_its_repository_is_named_relative_to_it_and_can_be_moved(tmp_path):
    engine = tmp_path / "engine"
    engine.mkdir()
    render.render_into_engine(engine, fake_manifest())
    moved = engine.rename(tmp_path / "moved")
    model = moved / "repository" / "tensorrt_llm"
    folder = pbtxt.read(model / "config.pbtxt").parameters["engine_dir"].string_value
    assert not Path(folder).is_absolute()
    assert (model / folder).resolve() == moved.resolve()


def test_more_in_flight_than_the_engine_was_built_for_is_refused(tmp_path):
    deploy = render.DeployConfig(max_batch_size=129)
    with pytest.raises(ConfigError, match="129; engine tiny-int8_wo@3 was built for at most 128"):
        render.render(tmp_path, fake_manifest(), tmp_path / "repository", deploy)
    assert not (tmp_path / "repository").exists()


def test_parameters_of_tensorrt_llm_are_refused_by_the_openvino_backend(tmp_path):
    parameters = parse_parameters({"enable_kv_cache_reuse": "true", "kv_cache_free_gpu_mem_fraction": "0.5"})
    deploy = render.DeployConfig(trtllm=parameters)
    with pytest.raises(ConfigError, match="kv_cache_free_gpu_mem_fraction, enable_kv_cache_reuse: of Tensor"):
        render.render(tmp_path, fake_manifest(), tmp_path / "r", deploy)


@pytest.mark.parametrize(("asked", "served"), [(None, "true"), (True, "true"), (False, "false")])
def test_reuse_is_on_unless_it_is_asked_off(tmp_path, asked, served):
    (tmp_path / "engine").mkdir()
    deploy = render.DeployConfig(num_kv_blocks=8, kv_reuse=asked)
    render.render(tmp_path / "engine", fake_manifest(), tmp_path / "r", deploy)
    config = pbtxt.read(tmp_path / "r" / "tensorrt_llm" / "config.pbtxt")
    assert config.parameters["enable_kv_cache_reuse"].string_value == served


def test_a_second_pool_on_the_host_is_no_choice_of_an_engine_that_is_on_the_host(tmp_path):
    deploy = render.DeployConfig(num_kv_blocks=8, kv_host_cache_bytes=1 << 30)
    with pytest.raises(ConfigError, match="KV cache is in host memory as it is"):
        render.render(tmp_path, fake_manifest(), tmp_path / "r", deploy)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("decoupled: true", "decoupled: false", "not decoupled"),
        ('name: "tensorrt_llm"', 'name: "other"', "name 'other'"),
        ('name: "input_lengths"', 'name: "lengths"', "input input_lengths is missing"),
        ('name: "output_ids"', 'name: "ids"', "output output_ids is missing"),
        (
            'output {\n  name: "output_ids"',
            'output { name: "x" }\noutput {\n  name: "output_ids"',
            "output x is none",
        ),
        ('string_value: "64"', 'string_value: "${num_kv_blocks}"', "unfilled template variable"),
        ('string_value: "64"', 'string_value: "1"', "num_kv_blocks '1'; expected a number from 2"),
        ('string_value: "7"', 'string_value: "-1"', "max_queue_size '-1'; expected a number from 0"),
        ('string_value: "true"', 'string_value: "yes"', "deterministic; expected true or false"),
        (
            'key: "enable_kv_cache_reuse"\n  value {\n    string_value: "true"',
            'key: "enable_kv_cache_reuse"\n  value {\n    string_value: "no"',
            "enable_kv_cache_reuse; expected true or false",
        ),
        ('backend: "python"', "backend: python:", "expected a Triton ModelConfig"),
        ('backend: "python"', 'backend: "onnxruntime"', "backend 'onnxruntime'; expected 'python'"),
        ("max_batch_size: 128", "max_batch_size: 129", "max_batch_size 129; expected 1 to 128"),
        ("max_batch_size: 128", "", "max_batch_size 0; expected 1 to 128"),
        ('key: "deterministic"', 'key: "determinism"', "parameter determinism is none of the model's"),
        ("e" * 64, "f" * 64, "engine_id 'ffff"),
        ('key: "engine_dir"', 'key: "engine_folder"', "engine_folder is none"),
    ],
)
def test_a_repository_that_is_not_the_contracts_or_the_engines_is_refused(tmp_path, old, new, said):
    repository = rendered(tmp_path)
    config = repository / "tensorrt_llm" / "config.pbtxt"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(said)):
        render.check(repository, fake_manifest(), tmp_path / "engine")


def test_a_repository_that_lacks_a_file_is_refused(tmp_path):
    repository = rendered(tmp_path)

    def refused(said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            render.check(repository, fake_manifest(), tmp_path / "engine")

    (tmp_path / "engine").rmdir()
    refused("engine is no folder")
    (tmp_path / "engine").mkdir()
    (repository / "tensorrt_llm" / "1" / "model.py").unlink()
    refused("no 1/model.py")
    (repository / "tensorrt_llm" / "2").mkdir()
    refused("version folders 1, 2; expected one")
    (repository / "tensorrt_llm" / "2").rmdir()
    (repository / "tensorrt_llm" / "1").rename(repository / "tensorrt_llm" / "2")
    refused("no version folder 1")
    (repository / "tensorrt_llm" / "config.pbtxt").unlink()
    refused("not found")


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("input", "input_lengths", {"optional": True}),
        ("input", "seed", {"data_type": model_config_pb2.TYPE_INT64}),
        ("input", "stop_words_list", {"allow_ragged_batch": False}),
        ("output", "output_ids", {"data_type": model_config_pb2.TYPE_INT64}),
    ],
)
def test_a_tensor_that_is_declared_otherwise_is_refused(tmp_path, kind, name, change):
    repository = rendered(tmp_path)
    path = repository / "tensorrt_llm" / "config.pbtxt"
    config = pbtxt.read(path)
    tensor = next(tensor for tensor in getattr(config, kind) if tensor.name == name)
    for field, value in change.items():
        setattr(tensor, field, value)
    pbtxt.write(path, config)
    with pytest.raises(ConfigError, match=f"{kind} {name} is missing or declared otherwise"):
        render.check(repository, fake_manifest(), tmp_path / "engine")


def test_a_scalar_without_its_reshape_is_refused(tmp_path):
    repository = rendered(tmp_path)
    path = repository / "tensorrt_llm" / "config.pbtxt"
    config = pbtxt.read(path)
    next(tensor for tensor in config.input if tensor.name == "end_id").ClearField("reshape")
    pbtxt.write(path, config)
    with pytest.raises(ConfigError, match="end_id is missing or declared otherwise"):
        render.check(repository, fake_manifest(), tmp_path / "engine")
