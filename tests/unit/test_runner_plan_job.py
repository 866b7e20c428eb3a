"""A plan's job file is read by `trtb run --config`, and says what the plan said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fakes.machine import fake_host
from fakes.model_sizes import model_sizes

from trtb.build.errors import ConfigError
from trtb.build.planning.gpu_catalogue import get_gpu
from trtb.build.planning.plan import Plan, PlanOptions
from trtb.build.planning.plan_cpu import plan_cpu
from trtb.build.planning.plan_gpu import plan_gpu
from trtb.build.planning.preflight_gpu import devices_named
from trtb.build.quantization import get_scheme
from trtb.runner.job_file import known_keys, read_job_file
from trtb.runner.plan_job import build_command, check_is_new, run_command, to_yaml, write_job
from trtb.runner.workload import uniform_workload


def cpu_plan() -> Plan:
    scheme = get_scheme("openvino", "int4_awq")
    load = uniform_workload(10, 300, 200)
    return plan_cpu(model_sizes("smollm2-135m"), scheme, fake_host(), PlanOptions(), load)


def gpu_plan(model: str, quant: str) -> Plan:
    scheme = get_scheme("tensorrt_llm", quant)
    return plan_gpu(model_sizes(model), scheme, devices_named(get_gpu("H100"), 8), PlanOptions())


def test_a_cpu_plan_is_read_back_with_its_pool_and_its_file(tmp_path: Path) -> None:
    made = cpu_plan()
    write_job(
        tmp_path / "job.yaml",
        made,
        model="smollm2-135m",
        build_spec="./smollm2-135m.gguf",
        engine=None,
        input_path=tmp_path / "in.jsonl",
    )
    read = read_job_file(tmp_path / "job.yaml")
    assert read.options == {
        "input_path": tmp_path / "in.jsonl",
        "concurrency": 10,
        "num_kv_blocks": made.memory.num_blocks,
    }
    assert read.model_path == "smollm2-135m"
    assert read.max_seq_len is None  # any engine of the model will do
    assert (
        f"# with the engine of: {build_command(made, './smollm2-135m.gguf')}\n"
        in (tmp_path / "job.yaml").read_text()
    )


def test_a_gpu_plan_sets_no_pool_of_its_own(tmp_path: Path) -> None:
    made = gpu_plan("llama-3.1-8b", "fp8")
    asked = {"model": "llama", "build_spec": "llama", "engine": "llama@3", "input_path": None}
    write_job(tmp_path / "job.yaml", made, **asked)
    read = read_job_file(tmp_path / "job.yaml")
    assert read.options == {"engine": "llama@3", "concurrency": 256}
    assert "trtb build" not in (tmp_path / "job.yaml").read_text()  # it is built


def test_a_job_has_only_known_keys_and_the_memory_for_evicted_blocks(tmp_path: Path) -> None:
    made = gpu_plan("llama-3.1-8b", "bf16")
    made = replace(made, settings=replace(made.settings, host_cache_bytes=1 << 30))
    asked = {"model": "llama", "build_spec": "llama", "engine": None, "input_path": Path("in.jsonl")}
    written = yaml.safe_load(to_yaml(made, **asked))
    del written["schema_version"]
    keys = {f"{section}.{key}" for section, values in written.items() for key in values}
    assert keys <= set(known_keys())
    write_job(tmp_path / "job.yaml", made, **asked)
    read = read_job_file(tmp_path / "job.yaml")
    assert read.options["trtllm_parameters"] == (f"kv_cache_host_memory_bytes={1 << 30}",)


def test_the_command_that_runs_a_job_names_a_file_where_none_was_counted() -> None:
    assert run_command(Path("my job.yaml"), Path("in.jsonl")) == "trtb run --config 'my job.yaml'"
    assert run_command(Path("job.yaml"), None) == "trtb run INPUT.jsonl --config job.yaml"


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    check_is_new(tmp_path / "new.yaml")
    (tmp_path / "old.yaml").touch()
    with pytest.raises(ConfigError, match=r"old.yaml: exists"):
        check_is_new(tmp_path / "old.yaml")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (gpu_plan("llama-3.1-70b", "fp8"), ["--tp-size 2", "--kv-cache-dtype fp8", "--max-seq-len 8192"]),
        (gpu_plan("llama-3.1-8b", "int4_awq"), ["--group-size 128", "--max-batch-size 256"]),
        (cpu_plan(), ["--backend openvino", "--group-size 64", "--max-num-tokens 512"]),
    ],
)
def test_the_command_builds_what_was_planned(plan: Plan, words: list[str]) -> None:
    command = build_command(plan, "MODEL")
    assert command.startswith("trtb build --model MODEL")
    assert all(word in command for word in words)
    assert ("--tp-size" in command) == (plan.settings.world_size > 1)


@pytest.mark.parametrize("given", [(0, 10, 10), (10, 0, 10), (10, 10, 0)])
def test_equal_requests_need_a_number_and_both_lengths(given: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="expected all three"):
        uniform_workload(*given)


def test_a_folder_that_cannot_be_written_is_an_option_s_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "job.yaml"
    with pytest.raises(ConfigError, match=r"(Not a directory|File exists); expected to write") as caught:
        write_job(path, cpu_plan(), model="a", build_spec="a", engine=None, input_path=None)
    assert "--write" in caught.value.hint
