"""Plans: the arithmetic against published and measured figures, what is recommended, what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machine import GIB, fake_host, fake_memory
from fakes.manifest import fake_manifest
from fakes.model_sizes import CONFIGS, NAMES, model_sizes

from trtb.build import checkpoint, hardware
from trtb.build.checkpoints.hf_config import read_config
from trtb.build.checkpoints.json_file import load_object
from trtb.build.errors import CheckpointError, ConfigError
from trtb.build.planning import throughput
from trtb.build.planning.gpu_catalogue import GPUS, find_gpu, get_gpu
from trtb.build.planning.plan import PlanOptions, Workload
from trtb.build.planning.plan_alternatives import alternatives
from trtb.build.planning.plan_cpu import plan_cpu
from trtb.build.planning.plan_gpu import plan_gpu
from trtb.build.planning.plan_memory import (
    Sizes,
    cpu_weight_bytes,
    gpu_weight_bytes,
    kv_bytes_per_token,
    peak_build_bytes,
)
from trtb.build.planning.plan_sources import read_sizes, to_build_spec, write_tokenizer_of
from trtb.build.planning.preflight_gpu import GpuDevice, devices_named
from trtb.build.quantization import get_scheme
from trtb.model_repo import pbtxt, render

# from configurations alone; the figures of TensorRT-LLM's documentation and of the models' makers
KV_KIB_PER_TOKEN = {
    "llama-3.1-8b": (128, 64),
    "llama-3.1-70b": (320, 160),
    "mistral-7b": (128, 64),
    "qwen2.5-7b": (56, 28),
    "smollm2-135m": (22.5, 11.25),
}
NUM_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "smollm2-135m": 134_515_008,
}
# MB of rank0.safetensors, as ModelOpt exported SmolLM2-135M
TRTLLM_CHECKPOINT_MB = {
    "f16": (None, 325.7),
    "fp8": (None, 219.5),
    "int8_sq": (None, 220.4),
    "int4_awq": (64, 173.3),
    "w4a8_awq": (64, 173.4),
    "nvfp4": (None, 173.1),
}
# MB of openvino_model.bin of the same model
OPENVINO_MB = {"f16": 269.0, "int8_wo": 144.0, "fp8": 138.7, "int4_awq": 85.0}

FILE = Workload(
    num_requests=10_000,
    prompt_tokens=4_500_000,
    output_tokens=15_000_000,
    max_request_tokens=3_000,
    num_blocks=620_000,
)


def on(gpu: str, count: int = 8) -> list[GpuDevice]:
    return devices_named(get_gpu(gpu), count)


def plan(
    model: str, quant: str, gpu: str, count: int = 8, workload: Workload | None = None, **options: object
):
    scheme = get_scheme("tensorrt_llm", quant)
    return plan_gpu(model_sizes(model), scheme, on(gpu, count), PlanOptions(**options), workload)


@pytest.mark.parametrize("name", NAMES)
def test_kv_bytes_and_parameters_of_known_models(name: str) -> None:
    sizes = model_sizes(name)
    in_16_bits, in_8 = KV_KIB_PER_TOKEN[name]
    assert kv_bytes_per_token(sizes.shape, "bf16") == in_16_bits * 1024
    assert kv_bytes_per_token(sizes.shape, "fp8") == in_8 * 1024
    assert sizes.num_parameters == NUM_PARAMETERS[name]


def test_kv_bytes_are_shared_by_ranks_down_to_one_head_each() -> None:
    shape = model_sizes("llama-3.1-70b").shape
    whole = kv_bytes_per_token(shape, "bf16")
    assert kv_bytes_per_token(shape, "bf16", tp_size=4) == whole / 4
    assert kv_bytes_per_token(shape, "bf16", tp_size=16) == whole / 8  # 8 heads: the rest are copies
    assert kv_bytes_per_token(shape, "bf16", pp_size=2) == whole / 2


@pytest.mark.parametrize("quant", TRTLLM_CHECKPOINT_MB)
def test_weights_of_a_tensorrt_llm_checkpoint_are_those_that_modelopt_writes(quant: str) -> None:
    group_size, measured = TRTLLM_CHECKPOINT_MB[quant]
    scheme = get_scheme("tensorrt_llm", quant)
    found = gpu_weight_bytes(model_sizes("smollm2-135m"), scheme, group_size, 1, 1)
    assert found / 1e6 == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("quant", OPENVINO_MB)
def test_weights_of_an_openvino_engine_are_those_of_its_bin_file(quant: str) -> None:
    found = cpu_weight_bytes(model_sizes("smollm2-135m"), get_scheme("openvino", quant), None)
    assert found / 1e6 == pytest.approx(OPENVINO_MB[quant], rel=0.03)


@pytest.mark.parametrize(
    ("model", "quant", "gpu", "count", "fits"),
    [
        ("llama-3.1-8b", "bf16", "H100", 1, True),
        ("llama-3.1-8b", "bf16", "A10", 1, True),
        ("llama-3.1-70b", "bf16", "H100", 1, False),  # 141 GB of weights
        ("llama-3.1-70b", "bf16", "H100", 4, True),
        ("llama-3.1-70b", "fp8", "H100", 1, True),  # there are published figures of just this
        ("llama-3.1-70b", "fp8", "L40S", 1, False),
        ("llama-3.1-70b", "int4_awq", "L40S", 1, True),
        ("llama-3.1-8b", "fp8", "A100-80GB", 1, False),  # no FP8 before Ada
        ("llama-3.1-8b", "bf16", "T4", 8, False),
        ("llama-3.1-8b", "bf16", "V100", 8, False),
        ("llama-3.1-8b", "int4_awq", "RTX-5090", 1, False),  # laid out wrongly there
        ("llama-3.1-8b", "nvfp4", "B200", 1, True),
        ("llama-3.1-8b", "nvfp4", "H200", 1, False),
        ("smollm2-135m", "bf16", "L4", 1, True),
    ],
)
def test_what_fits_where(model: str, quant: str, gpu: str, count: int, fits: bool) -> None:
    assert plan(model, quant, gpu, count).fits is fits


def test_a_plan_takes_the_fewest_gpus_that_hold_enough_requests() -> None:
    assert plan("llama-3.1-8b", "bf16", "H100").settings.tp_size == 1
    assert plan("llama-3.1-70b", "fp8", "H100").settings.tp_size == 2  # one holds too few to be quick
    assert plan("llama-3.1-70b", "fp8", "H100", count=1).settings.tp_size == 1
    assert plan("llama-3.1-70b", "bf16", "H200").settings.tp_size == 2
    few = replace(FILE, num_requests=4, prompt_tokens=1800, output_tokens=6000, num_blocks=248)
    assert plan("llama-3.1-70b", "fp8", "H100", workload=few).settings.tp_size == 1
    assert plan("llama-3.1-70b", "bf16", "H100", tp_size=8).settings.tp_size == 8


def test_tensor_parallelism_that_the_heads_do_not_allow_is_refused() -> None:
    with pytest.raises(ConfigError, match="9"):
        plan("smollm2-135m", "bf16", "H100", tp_size=2)


def test_fp8_engines_get_an_fp8_kv_cache_and_others_only_where_16_bits_do_not_fit() -> None:
    assert plan("llama-3.1-8b", "fp8", "H100").settings.kv_cache_dtype == "fp8"
    assert plan("llama-3.1-8b", "bf16", "H100").settings.kv_cache_dtype == "bf16"
    assert plan("llama-3.1-8b", "int4_awq", "A100-40GB").settings.kv_cache_dtype == "bf16"


def test_the_margin_is_taken_from_the_pool_that_the_runtime_takes() -> None:
    whole, kept = (plan("llama-3.1-8b", "bf16", "H100", margin=margin).memory for margin in (0.0, 0.2))
    assert kept.num_blocks == pytest.approx(0.8 * whole.num_blocks, abs=1)
    assert kept.pool_margin == 0.2
    for memory in (whole, kept):  # bytes and tokens are told of the same pool
        assert memory.pool_bytes == memory.num_tokens * memory.bytes_per_token
    assert kept.needed_bytes < whole.needed_bytes <= whole.total_bytes


def test_a_file_decides_the_length_and_the_batch() -> None:
    made = plan("llama-3.1-8b", "fp8", "H100", workload=FILE)
    assert made.settings.max_seq_len == 3008  # 3,000 in whole blocks
    assert made.max_concurrency == made.memory.num_blocks // 62
    assert made.min_concurrency == made.memory.num_blocks // 94
    assert made.settings.max_batch_size == 512
    short = replace(FILE, max_request_tokens=300_000)
    made = plan("llama-3.1-8b", "fp8", "H100", workload=short)
    assert made.settings.max_seq_len == 131072
    assert [found.code for found in made.findings] == ["requests_too_long"]


def test_options_are_kept_and_impossible_ones_named() -> None:
    made = plan("llama-3.1-8b", "fp8", "H100", max_seq_len=4096, max_batch_size=16, max_num_tokens=1024)
    settings = made.settings
    assert (settings.max_seq_len, settings.max_batch_size, settings.max_num_tokens) == (4096, 16, 1024)
    made = plan("smollm2-135m", "bf16", "H100", max_seq_len=20_000)
    assert not made.fits
    assert "context_short" in {found.code for found in made.findings}


def test_time_and_cost_come_from_the_nearest_figure_and_name_it() -> None:
    made = plan("llama-3.1-8b", "fp8", "H100", workload=FILE, gpu_hour_cost=2.5)
    assert made.estimate is not None
    row = made.estimate.reference
    assert (row.model, row.prompt_tokens, row.output_tokens) == ("Llama-3.1-8B", 500, 2000)
    assert made.estimate.duration_s == pytest.approx(15_000_000 / 16500.69)
    assert made.estimate.cost == pytest.approx(2.5 * 15_000_000 / 16500.69 / 3600)


@pytest.mark.parametrize("change", [{"quant": "int4_awq"}, {"gpu": "L4"}, {"model": "smollm2-135m"}])
def test_without_a_figure_there_is_no_estimate(change: dict[str, str]) -> None:
    asked = {"model": "llama-3.1-8b", "quant": "fp8", "gpu": "H100", **change}
    assert plan(**asked, workload=FILE).estimate is None


def test_figures_far_from_the_files_lengths_are_not_used() -> None:
    asked = {"num_parameters": 8_030_261_248, "device": "H100", "num_gpus": 1, "quant": "fp8"}
    assert throughput.nearest_reference(**asked, prompt_tokens=1000, output_tokens=1000) is not None
    assert throughput.nearest_reference(**asked, prompt_tokens=1000, output_tokens=10) is None
    assert throughput.nearest_reference(**asked, prompt_tokens=100_000, output_tokens=1000) is None


def test_every_figure_names_a_gpu_of_the_catalogue_and_a_scheme() -> None:
    rows = list(throughput.references())
    assert len(rows) == 13 * 9 - 2 + 5 + 5
    for row in rows:
        if row.num_gpus:
            assert get_gpu(row.device).name == row.device
            get_scheme("tensorrt_llm", row.quant)
        else:
            get_scheme("openvino", row.quant)


def test_evicted_blocks_go_to_the_host_where_prefixes_are_shared_and_the_pool_is_small() -> None:
    shared = replace(FILE, shared_prefix_share=0.5)
    scheme = get_scheme("tensorrt_llm", "bf16")
    sizes = model_sizes("llama-3.1-8b")

    def host_cache(gpu: str, load: Workload, host_bytes: int | None) -> int:
        made = plan_gpu(sizes, scheme, on(gpu, 1), PlanOptions(), load, host_bytes=host_bytes)
        return made.settings.host_cache_bytes

    assert host_cache("H100", shared, 400 * GIB) == 100 * GIB
    assert host_cache("H100", FILE, 400 * GIB) == 0
    assert host_cache("H100", shared, None) == 0  # another machine's host is not known
    assert host_cache("A100-80GB", shared, 400 * GIB) == 0  # its link to the host is slower than computing


def test_what_would_fit_instead_is_named_and_does_fit() -> None:
    sizes, options = model_sizes("llama-3.1-70b"), PlanOptions()
    scheme = get_scheme("tensorrt_llm", "bf16")
    others = alternatives(sizes, scheme, on("L40S", 1), options, None)
    assert "--quant int4_awq (1 GPU)" in others
    assert any(other.startswith("--gpu ") for other in others)
    assert plan("llama-3.1-70b", "int4_awq", "L40S", 1).fits


def test_only_equal_gpus_work_together() -> None:
    sizes, scheme = model_sizes("llama-3.1-70b"), get_scheme("tensorrt_llm", "bf16")
    mixed = [*on("H100", 2), *on("A100-80GB", 2)]
    assert not plan_gpu(sizes, scheme, mixed, PlanOptions(tp_size=4)).fits
    assert plan_gpu(sizes, scheme, on("H100", 4), PlanOptions(tp_size=4)).fits


def test_the_cpu_pool_is_the_one_that_the_server_is_rendered_with(tmp_path, monkeypatch) -> None:
    manifest = fake_manifest()
    for available_gib in (1, 4, 11, 64):
        memory = fake_memory(total_gib=128, available_gib=available_gib)
        monkeypatch.setattr(hardware, "available_host_bytes", lambda m=memory: m.available_bytes)
        target = tmp_path / str(available_gib)
        render.render(tmp_path, manifest, target, render.DeployConfig())
        served = pbtxt.read(target / "tensorrt_llm" / "config.pbtxt").parameters["num_kv_blocks"].string_value
        made = plan_cpu(
            model_sizes("smollm2-135m"),
            get_scheme("openvino", "int8_wo"),
            fake_host(memory=memory),
            PlanOptions(),
            limits=manifest.limits,
        )
        assert made.memory.num_blocks == int(served)
        assert made.memory.pool_bytes <= 4 * GIB


def test_a_cpu_plan_keeps_memory_in_reserve() -> None:
    def codes(total_gib: float, num_kv_blocks: int | None, quant: str = "int8_wo") -> dict[str, str]:
        host = fake_host(memory=fake_memory(total_gib=total_gib))
        options = PlanOptions(num_kv_blocks=num_kv_blocks)
        made = plan_cpu(model_sizes("smollm2-135m"), get_scheme("openvino", quant), host, options)
        return {found.code: found.severity for found in made.findings}

    block_bytes = 46080 * 32
    assert codes(32, None) == {}
    assert codes(8, int(0.71 * 8 * GIB / block_bytes))["kv_pool_large"] == "blocks"
    assert codes(8, int(0.62 * 8 * GIB / block_bytes))["memory_reserve_small"] == "blocks"
    assert codes(8, int(0.50 * 8 * GIB / block_bytes))["memory_reserve_small"] == "warns"
    assert "memory_reserve_small" not in codes(8, int(0.30 * 8 * GIB / block_bytes))


def test_a_model_too_large_for_the_host_does_not_fit() -> None:
    host = fake_host(memory=fake_memory(total_gib=23.5))
    made = plan_cpu(model_sizes("llama-3.1-8b"), get_scheme("openvino", "f16"), host, PlanOptions())
    assert not made.fits
    assert "host_memory_small" in {found.code for found in made.findings}


def test_a_request_longer_than_the_cpu_pool_does_not_fit() -> None:
    host = fake_host(memory=fake_memory(total_gib=32))
    load = Workload(1, 100, 5000, 5100, 160)
    asked = (model_sizes("smollm2-135m"), get_scheme("openvino", "int8_wo"), host)
    assert plan_cpu(*asked, PlanOptions(), load).fits
    made = plan_cpu(*asked, PlanOptions(num_kv_blocks=100), load)
    assert [found.code for found in made.findings if found.severity == "blocks"] == ["kv_pool_small"]


def test_a_cpu_estimate_is_of_the_same_instruction_set() -> None:
    load = Workload(64, 64 * 98, 64 * 64, 162, 64 * 6)
    made = plan_cpu(
        model_sizes("smollm2-135m"), get_scheme("openvino", "int8_wo"), fake_host(), PlanOptions(), load
    )
    assert made.estimate is not None
    assert made.estimate.reference.output_tokens_per_s == 131
    assert made.estimate.cost is None


def test_a_model_is_named_by_its_folder_or_its_file(tmp_path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_bytes((CONFIGS / "mistral-7b.json").read_bytes())
    assert read_sizes(str(folder), tmp_path).name == "my-model"
    assert read_sizes(str(folder / "config.json"), tmp_path).name == "my-model"
    assert model_sizes("mistral-7b").name == "mistral-7b"
    dotted = folder.rename(tmp_path / "Llama-3.1-8B")  # no suffix, and pinned in small letters
    assert read_sizes(str(dotted), tmp_path).name == "llama-3.1-8b"
    assert checkpoint.name_of(dotted) == "llama-3.1-8b"
    with pytest.raises(ConfigError, match="fetches nothing"):
        read_sizes("hf:org/name@0123", tmp_path)
    with pytest.raises(CheckpointError, match="not found"):
        read_sizes(str(tmp_path / "absent.json"), tmp_path)


def test_a_model_is_built_from_what_was_given(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    config = str(tmp_path / "llama" / "config.json")
    given = ["smollm2", "smollm2@0123", "llama", "llama/config.json", config, "config.json", "a b/m.gguf"]
    assert [to_build_spec(spec) for spec in given] == [
        "smollm2", "smollm2@0123", "./llama", "./llama", str(tmp_path / "llama"), "./", "a b/m.gguf"
    ]  # fmt: skip


def test_a_config_alone_has_no_tokenizer_and_says_what_has(tmp_path) -> None:
    with pytest.raises(ConfigError, match="expected a folder with a tokenizer") as caught:
        write_tokenizer_of(str(CONFIGS / "mistral-7b.json"), tmp_path, tmp_path / "tokenizer")
    assert "a pinned model" in caught.value.hint
    assert "--num-requests, --prompt-tokens and --output-tokens" in caught.value.hint


def test_host_memory_of_a_build_is_that_of_the_reports() -> None:
    sizes = model_sizes("llama-3.1-70b")
    needed = peak_build_bytes(sizes, get_scheme("tensorrt_llm", "int4_awq"))
    assert needed > 256e9  # with so much the build was killed


def test_the_experts_of_a_mixture_are_weights_too() -> None:
    config = load_object(CONFIGS / "mistral-7b.json") | {"model_type": "mixtral", "num_local_experts": 8}
    shape, inner, num_parameters = read_config(config)
    sizes = Sizes("mixtral", shape, inner, num_parameters, has_tied_embeddings=False)
    assert num_parameters == pytest.approx(46.7e9, rel=0.01)
    found = gpu_weight_bytes(sizes, get_scheme("tensorrt_llm", "int4_awq"), 128, 1, 1)
    assert found == pytest.approx(46.7e9 * 0.53, rel=0.03)


def test_what_the_catalogues_gpus_multiply() -> None:
    in_fp8 = {gpu.name for gpu in GPUS if gpu.has_fp8}
    without = {"A100-80GB", "A100-40GB", "A40", "A10", "T4", "V100"}
    assert in_fp8 == {gpu.name for gpu in GPUS} - without
    assert {gpu.name for gpu in GPUS if gpu.has_fp4} == {"B200", "RTX-5090"}


def test_gpus_are_found_by_what_people_and_drivers_call_them() -> None:
    for gpu in GPUS:
        assert get_gpu(gpu.name) is gpu
        assert get_gpu(gpu.name.lower().replace("-", " ")) is gpu
        assert all(find_gpu(name) is gpu for name in gpu.nvml_names)
    assert find_gpu("NVIDIA A10G") is None
    assert find_gpu(None) is None
    with pytest.raises(ConfigError) as caught:
        get_gpu("A100")
    assert "A100-80GB" in caught.value.hint
    with pytest.raises(ConfigError, match="expected one of"):
        get_gpu("MI300X")
