"""A TensorRT-LLM engine rendered as a Triton model repository.

`TRTB_UPDATE_GOLDEN=1` writes tests/golden/repositories anew.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine
from google.protobuf import text_format

from trtb.build.errors import ConfigError, EngineCorruptError
from trtb.build.manifest import EngineManifest
from trtb.model_repo import pbtxt, render, trtllm_tensors
from trtb.model_repo.render_trtllm import ALWAYS_THERE, read_parameters
from trtb.model_repo.trtllm_engine import TOKENIZER_INFO
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig, parse_parameters

GOLDEN = Path(__file__).parents[1] / "golden" / "repositories"
ROOT = PurePosixPath("/engine")
TUNED = {
    "kv_cache_free_gpu_mem_fraction": "0.85",
    "max_tokens_in_paged_kv_cache": "262144",
    "kv_cache_host_memory_bytes": "68719476736",
    "batch_scheduler_policy": "max_utilization",
    "gpu_device_ids": "0,1,2,3",
    "cuda_graph_mode": "true",
    "cuda_graph_cache_size": "64",
}
CASES: dict[str, tuple[dict[str, Any], render.DeployConfig]] = {
    "llama-3.1-8b-fp8": ({"quant": "fp8"}, render.DeployConfig()),
    "llama-3.1-8b-int4_awq": (
        {"quant": "int4_awq"},
        render.DeployConfig(max_batch_size=64, max_queue_size=512, num_kv_blocks=4096),
    ),
    "llama-3.1-70b-fp8-tp4": (
        {"model": "llama-3.1-70b", "quant": "fp8", "tp_size": 4},
        render.DeployConfig(trtllm=parse_parameters(TUNED), max_queue_delay_us=2000),
    ),
}


def rendered(
    tmp_path: Path, manifest: EngineManifest, deploy: render.DeployConfig | None = None, **built: Any
) -> Path:
    engine = write_trtllm_engine(tmp_path / "engine", manifest, **built)
    repository = tmp_path / "repository"
    render.render(engine, manifest, repository, deploy or render.DeployConfig(), ROOT)
    return repository


def read(repository: Path) -> Any:
    return pbtxt.read(repository / "tensorrt_llm" / "config.pbtxt")


def parameters(repository: Path) -> dict[str, str]:
    return {key: value.string_value for key, value in read(repository).parameters.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_repository_is_the_golden_one_and_says_what_was_asked(tmp_path, name):
    fields, deploy = CASES[name]
    repository = rendered(tmp_path, fake_trtllm_manifest(**fields), deploy)
    config, golden = read(repository), GOLDEN / f"{name}.pbtxt"
    if os.environ.get("TRTB_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text_format.MessageToString(config))
    assert config == pbtxt.read(golden)
    limit = deploy.max_batch_size or 256
    assert (config.backend, config.max_batch_size) == ("tensorrtllm", limit)
    assert list(config.dynamic_batching.preferred_batch_size) == [limit]
    assert config.dynamic_batching.max_queue_delay_microseconds == deploy.max_queue_delay_us
    assert config.dynamic_batching.default_queue_policy.max_queue_size == deploy.max_queue_size
    said = read_parameters(parameters(repository))
    pool = deploy.num_kv_blocks * 32 if deploy.num_kv_blocks else deploy.trtllm.max_tokens_in_paged_kv_cache
    assert said == deploy.trtllm.model_copy(
        update={
            "enable_kv_cache_reuse": True,
            "enable_chunked_context": True,
            "guided_decoding_backend": "off",
            "max_tokens_in_paged_kv_cache": pool,
        }
    )


def test_the_kv_cache_in_the_terms_of_both_backends_is_the_backends_own_parameters(tmp_path):
    manifest = fake_trtllm_manifest()
    kept = render.DeployConfig(kv_host_cache_bytes=1 << 33, kv_reuse=True)
    said = parameters(rendered(tmp_path / "kept", manifest, kept))
    assert (said["enable_kv_cache_reuse"], said["kv_cache_host_memory_bytes"]) == ("true", str(1 << 33))
    off = parameters(rendered(tmp_path / "off", manifest, render.DeployConfig(kv_reuse=False)))
    assert (off["enable_kv_cache_reuse"], "kv_cache_host_memory_bytes" in off) == ("false", False)


def test_every_tensor_of_the_template_is_declared_once(tmp_path):
    config = read(rendered(tmp_path, fake_trtllm_manifest()))
    assert [tensor.name for tensor in config.input] == [spec.name for spec in trtllm_tensors.INPUTS]
    assert [tensor.name for tensor in config.output] == [spec.name for spec in trtllm_tensors.OUTPUTS]
    assert len({tensor.name for tensor in config.input}) == len(config.input)


def test_what_the_backend_cannot_do_without_is_there_and_nothing_is_left_to_fill(tmp_path):
    repository = rendered(tmp_path, fake_trtllm_manifest())
    said = parameters(repository)
    assert said["gpt_model_path"] == "/engine/engine"
    assert {name: said[name] for name in ALWAYS_THERE if not said[name]} == {
        "guided_decoding_backend": "",
        "tokenizer_dir": "",
        "xgrammar_tokenizer_info_path": "",
    }
    assert said["enable_kv_cache_reuse"] == said["enable_chunked_context"] == "true"
    assert said["FORCE_CPU_ONLY_INPUT_TENSORS"] == "no"
    assert "${" not in (repository / "tensorrt_llm" / "config.pbtxt").read_text()
    for name in ALWAYS_THERE:
        with pytest.raises(ConfigError, match=f"parameter {name}: not there"):
            read_parameters({key: text for key, text in said.items() if key != name})


def test_guided_decoding_is_on_where_the_engine_has_its_vocabulary(tmp_path):
    manifest = fake_trtllm_manifest()
    engine = write_trtllm_engine(tmp_path / "engine", manifest)
    (engine / TOKENIZER_INFO).write_text("{}")
    render.render(engine, manifest, tmp_path / "r", render.DeployConfig(), ROOT)
    said = parameters(tmp_path / "r")
    assert said["guided_decoding_backend"] == "xgrammar"
    assert said["xgrammar_tokenizer_info_path"] == f"/engine/{TOKENIZER_INFO}"
    off = render.DeployConfig(trtllm=TrtllmDeployConfig(guided_decoding_backend="off"))
    render.render(engine, manifest, tmp_path / "off", off, ROOT)
    assert parameters(tmp_path / "off")["xgrammar_tokenizer_info_path"] == ""


def test_the_path_is_the_engines_own_where_the_server_sees_what_we_see(tmp_path):
    manifest = fake_trtllm_manifest()
    engine = write_trtllm_engine(tmp_path / "engine", manifest)
    render.render(engine, manifest, tmp_path / "r", render.DeployConfig())
    path = Path(parameters(tmp_path / "r")["gpt_model_path"])
    assert path.is_absolute()
    assert (path / "rank0.engine").is_file()


def test_the_repository_inside_an_engine_is_for_a_container_that_mounts_it(tmp_path):
    manifest = fake_trtllm_manifest()
    staged = write_trtllm_engine(tmp_path / "staged", manifest)
    render.render_into_engine(staged, manifest)
    moved = staged.rename(tmp_path / "moved")
    said = parameters(moved / "repository")
    for name in ("gpt_model_path", "xgrammar_tokenizer_info_path"):
        assert (moved / PurePosixPath(said[name]).relative_to(render.ENGINE_MOUNT)).exists()
    render.check(moved / "repository", manifest, moved, render.ENGINE_MOUNT)


def test_groups_of_gpus_are_instances(tmp_path):
    deploy = render.DeployConfig(trtllm=parse_parameters({"gpu_device_ids": "0;1;2"}))
    (group,) = read(rendered(tmp_path, fake_trtllm_manifest(), deploy)).instance_group
    assert (group.count, group.kind) == (3, group.KIND_CPU)


def test_an_engine_without_paged_context_is_served_without_reuse(tmp_path):
    said = parameters(rendered(tmp_path, fake_trtllm_manifest(), use_paged_context_fmha=False))
    assert said["enable_kv_cache_reuse"] == said["enable_chunked_context"] == "false"


@pytest.mark.parametrize(
    ("deploy", "said"),
    [
        (render.DeployConfig(max_batch_size=257), "max_batch_size: 257; engine llama-3.1-8b-fp8@1 was built"),
        (
            render.DeployConfig(num_kv_blocks=255),
            "max_tokens_in_paged_kv_cache: 8160; expected at least 8192",
        ),
        (render.DeployConfig(deterministic=True), "computes in the precision that it was compiled for"),
        (
            render.DeployConfig(
                num_kv_blocks=300, trtllm=TrtllmDeployConfig(max_tokens_in_paged_kv_cache=9000)
            ),
            "num_kv_blocks: 300, which is 9600 tokens, and max_tokens_in_paged_kv_cache: 9000",
        ),
        (
            render.DeployConfig(kv_reuse=True, trtllm=TrtllmDeployConfig(enable_kv_cache_reuse=False)),
            "kv_reuse: True, and enable_kv_cache_reuse: False",
        ),
        (
            render.DeployConfig(
                kv_host_cache_bytes=5, trtllm=TrtllmDeployConfig(kv_cache_host_memory_bytes=6)
            ),
            "kv_host_cache_bytes: 5, and kv_cache_host_memory_bytes: 6",
        ),
        (
            render.DeployConfig(kv_host_cache_bytes=5, kv_reuse=False),
            "kv_cache_host_memory_bytes: 5; expected 0 without enable_kv_cache_reuse",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused_before_anything_is_written(tmp_path, deploy, said):
    with pytest.raises(ConfigError) as caught:
        rendered(tmp_path, fake_trtllm_manifest(), deploy)
    assert said in caught.value.message
    assert not (tmp_path / "repository").exists()


def set_parameter(name: str, text: str | None) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        if text is None:
            del config.parameters[name]
        else:
            config.parameters[name].string_value = text

    return change


def change_input(name: str, **fields: Any) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        tensor = next(tensor for tensor in config.input if tensor.name == name)
        for field, value in fields.items():
            setattr(tensor, field, value)

    return change


BROKEN: list[tuple[Callable[[Any], object], str]] = [
    (lambda config: config.ClearField("model_transaction_policy"), "not decoupled"),
    (lambda config: setattr(config, "backend", "python"), "backend 'python'; expected 'tensorrtllm'"),
    (lambda config: setattr(config, "max_batch_size", 512), "max_batch_size 512; expected 1 to 256"),
    (lambda config: setattr(config, "max_batch_size", 0), "max_batch_size 0; expected 1 to 256"),
    (lambda config: config.dynamic_batching.preferred_batch_size.append(300), "preferred_batch_size over"),
    (lambda config: config.ClearField("dynamic_batching"), "no default_queue_policy"),
    (lambda config: setattr(config.instance_group[0], "count", 2), "2 instances; expected 1"),
    (lambda config: setattr(config.instance_group[0], "kind", 1), "expected 1, of KIND_CPU"),
    (lambda config: config.ClearField("instance_group"), "0 instances; expected 1"),
    (lambda config: config.input.pop(), "input lookahead_verification_set_size is missing"),
    (lambda config: config.output.pop(), "output num_output_tokens is missing"),
    (change_input("embedding_bias", data_type=10), "input embedding_bias is missing or declared otherwise"),
    (change_input("lora_config", optional=False), "input lora_config is missing or declared otherwise"),
    (change_input("mrope_position_deltas", allow_ragged_batch=True), "input mrope_position_deltas is miss"),
    (set_parameter("engine_id", "f" * 64), "engine_id 'ffff"),
    (set_parameter("gpt_model_path", "/other/engine"), "gpt_model_path '/other/engine'; expected '/engine/"),
    (set_parameter("gpt_model_path", None), "parameter gpt_model_path: not there"),
    (set_parameter("tokenizer_dir", None), "parameter tokenizer_dir: not there"),
    (set_parameter("enable_kv_cache_reuse", None), "enable_kv_cache_reuse: not there; releases have differ"),
    (set_parameter("enable_chunked_context", None), "enable_chunked_context: not there; releases have diff"),
    (set_parameter("gpt_model_type", "V1"), "parameter gpt_model_type: 'V1'"),
    (set_parameter("max_beam_width", "4"), "parameter max_beam_width: 4; expected at most 1"),
    (set_parameter("max_tokens_in_paged_kv_cache", "100"), "expected at least 8192"),
    (set_parameter("kv_cache_fraction", "0.9"), "has no such parameter"),
    (set_parameter("encoder_model_path", "/x"), "parameter encoder_model_path: not an option"),
    (set_parameter("guided_decoding_backend", "xgrammar"), "the engine holds no vocabulary"),
    (set_parameter("xgrammar_tokenizer_info_path", "/x"), "xgrammar_tokenizer_info_path '/x'; expected ''"),
    (set_parameter("lora_prefetch_dir", "${lora_prefetch_dir}"), "unfilled template variable"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `engine` and its `repository`, rendered once and only read."""
    folder = tmp_path_factory.mktemp("whole")
    manifest = fake_trtllm_manifest()
    render.check(rendered(folder, manifest), manifest, folder / "engine", ROOT)
    return folder


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_a_repository_that_does_not_fit_its_engine_is_refused(whole, tmp_path, change, said):
    repository = tmp_path / "repository"
    shutil.copytree(whole / "repository", repository)
    config = read(repository)
    change(config)
    pbtxt.write(repository / "tensorrt_llm" / "config.pbtxt", config)
    with pytest.raises(ConfigError, match=re.escape(said)):
        render.check(repository, fake_trtllm_manifest(), whole / "engine", ROOT)


def test_a_repository_of_an_engine_that_lost_a_rank_is_refused(tmp_path):
    manifest = fake_trtllm_manifest("llama-3.1-70b", tp_size=4)
    repository = rendered(tmp_path, manifest)
    (tmp_path / "engine" / "engine" / "rank2.engine").unlink()
    with pytest.raises(EngineCorruptError, match=r"rank2\.engine: not found"):
        render.check(repository, manifest, tmp_path / "engine", ROOT)


def test_the_version_folder_survives_a_copy_that_drops_empty_ones(tmp_path):
    version = rendered(tmp_path, fake_trtllm_manifest()) / "tensorrt_llm" / "1"
    assert [path.name for path in version.iterdir()] == [".keep"]
