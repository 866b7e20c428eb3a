"""Compiling with a trtllm-build that computes nothing, on the PATH and behind docker, and how it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import wait_until
from fakes import docker, trtllm_build
from fakes import trtllm_checkpoint as exported
from fakes.trtllm_zeros import write_zeros

from trtb.build.errors import CompileError, ConfigError, HardwareError, ToolchainMissingError
from trtb.build.trtllm.trtllm_compile import CompileRecord, compile_command, compile_engine
from trtb.build.trtllm.trtllm_compiler import Compiler, find_compiler
from trtb.build.trtllm.trtllm_container import WORK_FOLDER
from trtb.build.trtllm.trtllm_options import TrtllmOptions
from trtb.build.trtllm.trtllm_rules import CompileTarget, resolve_options
from trtb.build.trtllm.trtllm_scripts import ScriptJob, run_script

SYSTEM_PATH = "/usr/bin:/bin"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that changes what the machine is like; at first, an H100 with trtllm-build."""
    programs = trtllm_build.install(tmp_path / "toolchain")
    monkeypatch.setenv("PATH", f"{programs}:{SYSTEM_PATH}")
    for name in (trtllm_build.VARIABLE, docker.VARIABLE, docker.CALLS, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def change(**facts: Any) -> None:
        monkeypatch.setenv(trtllm_build.VARIABLE, json.dumps(facts))

    return change


@pytest.fixture
def calls(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Add docker to the machine, and return where its calls are noted."""
    docker_programs = docker.install(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{docker_programs}:{tmp_path / 'toolchain' / 'bin'}:{SYSTEM_PATH}")
    monkeypatch.setenv(docker.CALLS, str(tmp_path / "calls"))
    return tmp_path / "calls"


def target(**changes: Any) -> CompileTarget:
    given = {
        "quant": "bf16",
        "kv_cache_dtype": "bf16",
        "architecture": "LlamaForCausalLM",
        "max_seq_len": 4096,
        "sm": 90,
        **changes,
    }
    return CompileTarget(**given)


def compiled(
    compiler: Compiler, options: TrtllmOptions, folder: Path, log: io.StringIO, **settings: Any
) -> CompileRecord:
    output = folder / "engine"
    output.mkdir()
    return compile_engine(
        compiler, options, folder / "checkpoint", output, log=log, say=lambda *_: None, **settings
    )


OPTIONS = resolve_options(target(), {}).options


def test_the_compiler_on_the_path_is_asked_what_it_loads_and_sees(machine: Any) -> None:
    compiler = find_compiler("path")
    assert compiler.image is None
    assert compiler.versions["tensorrt_llm"] == "1.2.1"
    assert compiler.versions["tensorrt"] == "10.14.1.48"
    assert (compiler.gpus[0].name, compiler.sm) == ("NVIDIA H100 80GB HBM3", 90)
    assert compiler.gpus[0].driver_version == "590.44.01"


@pytest.mark.parametrize(
    ("facts", "kind", "message"),
    [
        ({"tensorrt": "10.13.3.9"}, ToolchainMissingError, "tensorrt 10.13.3.9 with tensorrt_llm 1.2.1"),
        ({"tensorrt_llm": "0.21.0"}, ToolchainMissingError, "tensorrt_llm 0.21.0; expected a release"),
        ({"gpus": []}, HardwareError, "no GPU is visible"),
        ({"driver": "550.54.15"}, HardwareError, "driver: 550.54.15; TensorRT-LLM 1.2.1 needs 580"),
        ({"fail": "no_libcuda"}, HardwareError, "no GPU is visible to the compiler; its last lines"),
    ],
)
def test_a_compiler_whose_engines_could_not_be_served_is_refused(
    machine: Any, facts: dict[str, Any], kind: type[Exception], message: str
) -> None:
    machine(**facts)
    with pytest.raises(kind) as caught:
        find_compiler("path")
    assert message in str(caught.value)


def test_without_any_compiler_it_says_what_was_looked_for_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ToolchainMissingError) as caught:
        find_compiler()
    assert "trtllm-build: not on the PATH; and docker: no such command" in caught.value.message
    assert "NVIDIA Container Toolkit" in caught.value.hint


def test_the_real_docker_here_is_used_or_says_what_it_lacks() -> None:
    try:
        compiler = find_compiler("docker")
    except (ToolchainMissingError, HardwareError) as exc:
        assert "docker" in exc.message or "container" in exc.message
        assert exc.hint
    else:
        assert compiler.image


def test_an_engine_is_compiled_logged_and_verified(machine: Any, tmp_path: Path) -> None:
    write_zeros(tmp_path / "checkpoint")
    log, told = io.StringIO(), []
    output = tmp_path / "engine"
    output.mkdir()
    record = compile_engine(
        find_compiler(),
        OPTIONS,
        tmp_path / "checkpoint",
        output,
        log=log,
        say=lambda step, detail: told.append(detail),
    )
    assert sorted(path.name for path in output.iterdir()) == ["config.json", "rank0.engine"]
    assert record.command == compile_command(find_compiler(), OPTIONS, tmp_path / "checkpoint", output)
    assert record.engine.adjustments == []
    assert record.peak_device_bytes == 19386 << 20
    assert record.peak_host_bytes > 40000 << 20
    assert "Total time of building all engines" in log.getvalue()
    assert "choosing kernels, rank 1 of 1" in told
    CompileRecord.model_validate_json(record.model_dump_json())


@pytest.mark.parametrize(
    ("quant", "kv_algo", "tp_size", "pp_size"),
    [
        ("bf16", None, 2, 2),
        ("int8_wo", None, 1, 1),
        ("fp8", "FP8", 1, 1),
        ("int4_awq", None, 2, 1),
        ("w4a8_awq", "FP8", 1, 1),
        ("int8_sq", None, 1, 1),
        ("nvfp4", "FP8", 1, 1),
    ],
)
def test_each_scheme_is_compiled_as_it_is_exported(
    machine: Any, tmp_path: Path, quant: str, kv_algo: str | None, tp_size: int, pp_size: int
) -> None:
    source = exported.write_source(tmp_path / "source")
    parts = exported.export(source, quant, tp_size=tp_size, pp_size=pp_size, kv_algo=kv_algo)
    exported.write(tmp_path / "checkpoint", *parts)
    wanted = target(
        quant=quant, kv_cache_dtype="fp8" if kv_algo else "bf16", tp_size=tp_size, pp_size=pp_size
    )
    machine(gpus=[["NVIDIA H100 80GB HBM3", 9, 0]] * 4)
    record = compiled(find_compiler(), resolve_options(wanted, {}).options, tmp_path, io.StringIO())
    assert record.engine.num_ranks == tp_size * pp_size
    assert record.engine.adjustments == []


@pytest.mark.parametrize(
    ("algo", "missing"),
    [
        ("W4A16_AWQ", "transformer.layers.1.mlp.fc.prequant_scaling_factor"),
        ("FP8", "transformer.layers.0.attention.qkv.activation_scaling_factor"),
        (None, "transformer.layers.0.mlp.gate.weight"),
    ],
)
def test_a_checkpoint_without_a_tensor_is_named_as_the_cause(
    machine: Any, tmp_path: Path, algo: str | None, missing: str
) -> None:
    write_zeros(tmp_path / "checkpoint", quant_algo=algo, is_left_out=lambda name: name == missing)
    with pytest.raises(CompileError, match="lacks tensors that its scheme needs") as caught:
        compiled(find_compiler(), OPTIONS, tmp_path, io.StringIO())
    assert missing in caught.value.message


@pytest.mark.parametrize(
    ("how", "likely"),
    [
        ("gpu_memory", "the GPU's memory does not hold the build"),
        ("host_memory", "the host's memory does not hold the build"),
        ("killed", "it was killed, as the system does when memory runs out"),
        ("tensorrt_version", "files of different TensorRT or TensorRT-LLM versions"),
        ("disk", "the disk is full"),
        ("driver", "the NVIDIA driver is too old"),
        ("mpi", "Open MPI"),
    ],
)
def test_a_failure_says_how_why_and_what_next(machine: Any, tmp_path: Path, how: str, likely: str) -> None:
    write_zeros(tmp_path / "checkpoint")
    compiler, log = find_compiler(), io.StringIO()
    machine(fail=how)
    with pytest.raises(CompileError) as caught:
        compiled(compiler, OPTIONS, tmp_path, log)
    assert f"likely cause: {likely}" in caught.value.message
    assert caught.value.hint
    assert "Build TensorRT engine" in log.getvalue()
    assert "Build TensorRT engine" in caught.value.message


def test_an_unknown_failure_shows_the_end_of_the_output_and_claims_nothing(
    machine: Any, tmp_path: Path
) -> None:
    write_zeros(tmp_path / "checkpoint")
    compiler = find_compiler()
    machine(fail="crash")
    with pytest.raises(CompileError, match="ended with status 1; its last lines") as caught:
        compiled(compiler, OPTIONS, tmp_path, io.StringIO())
    assert caught.value.message.endswith("AssertionError: something never seen before")
    assert "likely cause" not in caught.value.message


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("partial", "rank1.engine: 16 bytes"),
        ("missing_rank", "rank1.engine: not found"),
        ("stray", "rank9.engine: not expected"),
        ("other_version", "version: '1.1.0'; expected 1.2.1"),
        ("unasked", "max_batch_size: 8; expected '512'"),
    ],
)
def test_a_compiler_that_ends_well_is_not_believed(
    machine: Any, tmp_path: Path, how: str, message: str
) -> None:
    write_zeros(tmp_path / "checkpoint", tp_size=2)
    compiler = find_compiler()
    machine(fail=how)
    options = resolve_options(target(tp_size=2), {}).options
    with pytest.raises(CompileError) as caught:
        compiled(compiler, options, tmp_path, io.StringIO())
    assert message in caught.value.message


def test_a_flag_of_another_release_is_named_as_the_cause(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zeros(tmp_path / "checkpoint")
    compiler = find_compiler()
    monkeypatch.setattr("trtb.build.trtllm.trtllm_compile.render_argv", lambda *_: ["--enable_xqa", "enable"])
    with pytest.raises(CompileError, match="does not know an option") as caught:
        compiled(compiler, OPTIONS, tmp_path, io.StringIO())
    assert "ended with status 2" in caught.value.message


def test_a_silent_compiler_is_ended_with_all_it_started(machine: Any, tmp_path: Path) -> None:
    write_zeros(tmp_path / "checkpoint")
    compiler = find_compiler()
    machine(fail="hang")
    with pytest.raises(CompileError, match="said nothing for 1 s and was ended"):
        compiled(compiler, OPTIONS, tmp_path, io.StringIO(), silence_limit_s=1.0)
    assert leftovers(tmp_path) == []


def leftovers(folder: Path) -> list[psutil.Process]:
    """Return what still works in a folder's engine."""
    found = []
    for process in psutil.process_iter(["cwd", "status"]):
        if str(folder) in str(process.info["cwd"]) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


COMPILE = """
import io, sys
from pathlib import Path
from trtb.build.trtllm.trtllm_compile import compile_engine
from trtb.build.trtllm.trtllm_compiler import Compiler, find_compiler
from trtb.build.trtllm.trtllm_options import TrtllmOptions
folder = Path(sys.argv[1])
program = Path(sys.argv[2]) if sys.argv[2] else None
compiler = Compiler(program, sys.argv[3] or None, versions={"tensorrt_llm": "1.2.1"})
(folder / "engine").mkdir()
compile_engine(compiler, TrtllmOptions(max_seq_len=64), folder / "checkpoint", folder / "engine",
               log=sys.stdout, say=lambda *_: None)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_compiler_outlives_trtb(machine: Any, tmp_path: Path, number: signal.Signals) -> None:
    write_zeros(tmp_path / "checkpoint")
    machine(fail="hang")
    program = tmp_path / "toolchain" / "bin" / "trtllm-build"
    process = start_compile(tmp_path, str(program), "")
    process.send_signal(number)
    process.wait(30)
    wait_until(lambda: not leftovers(tmp_path), 20, "the compiler's end")


def start_compile(folder: Path, program: str, image: str) -> subprocess.Popen[bytes]:
    """Start a compilation that hangs, and return when it does."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(folder), program, image],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=sys.prefix,
            env=dict(os.environ),
        )
    wait_until(lambda: b"Build TensorRT engine" in (folder / "log").read_bytes(), 60, "the compiler's work")
    return process


def test_the_container_is_used_by_digest_where_there_is_no_compiler(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = find_compiler("docker")
    assert (compiler.image, compiler.program, compiler.sm) == (docker.DIGEST, None, 90)
    write_zeros(tmp_path / "checkpoint")
    record = compiled(compiler, OPTIONS, tmp_path, io.StringIO())
    assert record.image == docker.DIGEST
    assert record.peak_host_bytes > 40000 << 20
    run = docker.read_calls(calls)[-1]
    assert run[0] == "run"
    assert run[run.index("--network") + 1] == "none"
    assert f"type=bind,source={tmp_path / 'checkpoint'},target=/trtb/checkpoint,readonly" in run
    assert not (tmp_path / "engine" / WORK_FOLDER).exists()


@pytest.mark.parametrize(
    ("state", "image", "kind", "message"),
    [
        ({"engine": "down"}, docker.IMAGE, ToolchainMissingError, "its engine does not answer"),
        ({}, docker.IMAGE.replace("26.07", "25.10"), ToolchainMissingError, "is not on this machine"),
        ({"gpus": "none"}, docker.IMAGE, HardwareError, "docker cannot hand GPUs to containers"),
    ],
)
def test_a_docker_that_cannot_compile_says_why(
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: dict[str, str],
    image: str,
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.setenv(docker.VARIABLE, json.dumps(state))
    with pytest.raises(kind, match=message):
        find_compiler("docker", image=image)


def test_a_container_of_another_release_than_its_name_says_is_refused(calls: Path, machine: Any) -> None:
    machine(tensorrt_llm="1.1.0", tensorrt="10.13.3.9")
    with pytest.raises(ToolchainMissingError, match=r"tensorrt_llm 1\.1\.0; expected 1\.2\.1"):
        find_compiler("docker")


def test_a_killed_build_ends_its_container_by_name(calls: Path, machine: Any, tmp_path: Path) -> None:
    write_zeros(tmp_path / "checkpoint")
    machine(fail="hang")
    process = start_compile(tmp_path, "", docker.DIGEST)
    run = docker.read_calls(calls)[-1]
    process.kill()
    process.wait(30)
    name = run[run.index("--name") + 1]
    wait_until(lambda: ["kill", name] in docker.read_calls(calls), 20, "the container's end")


def test_files_that_options_name_are_shown_to_the_container_and_must_exist(
    calls: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "timing.cache"
    cache.write_bytes(b"x")
    compiler = Compiler(program=None, image=docker.DIGEST)
    options = OPTIONS.model_copy(update={"input_timing_cache": str(cache), "lora_plugin": "auto"})
    command = compile_command(compiler, options, tmp_path, tmp_path)
    assert f"type=bind,source={cache},target=/trtb/extra/timing.cache,readonly" in command
    assert command[command.index("--input_timing_cache") + 1] == "/trtb/extra/timing.cache"
    missing = options.model_copy(update={"lora_dir": (str(tmp_path / "none"),)})
    with pytest.raises(ConfigError, match=r"trtllm option lora_dir: .*none: not found"):
        compile_command(compiler, missing, tmp_path, tmp_path)


def test_ranks_are_not_compiled_on_different_kinds_of_gpu(machine: Any, tmp_path: Path) -> None:
    machine(gpus=[["NVIDIA H100 80GB HBM3", 9, 0], ["NVIDIA L40S", 8, 9]])
    write_zeros(tmp_path / "checkpoint", tp_size=2)
    options = resolve_options(target(tp_size=2, num_gpus=2), {}).options
    with pytest.raises(HardwareError, match=r"NVIDIA H100 80GB HBM3 \(sm_90\) and NVIDIA L40S \(sm_89\)"):
        compiled(find_compiler(), options, tmp_path, io.StringIO())


SCRIPT = """
import argparse, json
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("model_dir", "output_dir", "dtype", "qformat", "awq_block_size", "calib_dataset", "calib_size",
             "calib_max_seq_length", "tokenizer_max_seq_length", "batch_size", "seed", "device", "tp_size",
             "pp_size"):
    parser.add_argument(f"--{name}")
args = parser.parse_args()
lines = (Path(args.calib_dataset) / "train.jsonl").read_text().splitlines()
config = json.loads((Path(args.model_dir) / "config.json").read_text())
assert config["architectures"], config
print("calibrating with", len(lines), "texts")
if args.seed == "13":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
(Path(args.output_dir) / "config.json").write_text(json.dumps({"qformat": args.qformat}))
"""


@pytest.mark.parametrize("seed", [1234, 13])
def test_a_checkpoint_is_quantised_by_the_containers_own_script(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    script = tmp_path / "examples" / "quantization" / "quantize.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    folders = {"image_folders": {"/app/examples": str(tmp_path / "examples")}}
    monkeypatch.setenv(docker.VARIABLE, json.dumps(folders))
    source, output, log = tmp_path / "source", tmp_path / "output", io.StringIO()
    source.mkdir()
    output.mkdir()
    (source / "config.json").write_text(json.dumps({"architectures": ["FalconForCausalLM"]}))
    job = ScriptJob("FalconForCausalLM", "int4_awq", "bf16", "bf16", 128, 1, 1, 64, 512, seed)

    def start() -> list[str]:
        return run_script(
            docker.IMAGE, job, source, output, texts=["one", "two"], log=log, say=lambda *_: None
        )

    if seed == 13:
        with pytest.raises(
            CompileError, match=r"quantize\.py: ended with status 1; likely cause: the GPU's memory"
        ):
            start()
    else:
        assert "--network" in start()
        assert [path.name for path in output.iterdir()] == ["config.json"]
        assert f"type=bind,source={source},target=/trtb/checkpoint,readonly" in docker.read_calls(calls)[-1]
    assert "calibrating with 2 texts" in log.getvalue()
