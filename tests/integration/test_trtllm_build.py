"""`trtb build --backend tensorrt_llm`, checkpoint to store: ModelOpt is real, GPU and compiler are not.

The compiler computes nothing, and is as strict about flags and checkpoints as the real one; the GPU is a
library that answers as NVIDIA's does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import TRTB, Done, wait_until
from fakes import trtllm_build
from fakes import trtllm_checkpoint as exported
from fakes.nvml_library import Machine
from fakes.trtllm_templates import write_templates

from trtb.build.store import EngineStore
from trtb.model_repo import pbtxt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers with random weights: its quality figures mean nothing, its files do."""
    source = exported.write_source(tmp_path_factory.mktemp("hf") / "tiny-llama")
    return source.path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toolchain_home: Path) -> Path:
    root = tmp_path_factory.mktemp("trtllm-home")
    (root / "toolchains").symlink_to(toolchain_home / "toolchains")
    return root


class Host:
    """A machine with an H100 and trtllm-build on the PATH."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home = home
        self.compiler = Path(environment["PATH"].split(":")[0]) / "trtllm-build"
        self._environment = environment

    def run(self, *arguments: object) -> Done:
        command = [*TRTB, *map(str, arguments)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: object, **facts: Any) -> subprocess.Popen[str]:
        environment = {**self._environment, trtllm_build.VARIABLE: json.dumps(facts)}
        return subprocess.Popen(
            [*TRTB, "build", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def build(self, *arguments: object, **facts: Any) -> Done:
        process = self.start(*arguments, **facts)
        stdout, stderr = process.communicate(timeout=600)
        return Done(process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def host(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("machine")
    programs = trtllm_build.install(root / "toolchain")
    gpu = Machine(["h100"]).environment(root / "libraries", root)
    path = f"{programs}:{os.environ['PATH']}"
    return Host(home, {**os.environ, **gpu, "PATH": path, "TRTB_HOME": str(home)})


def arguments(folder: Path, *more: object) -> tuple[object, ...]:
    return ("--model", folder, "--backend", "tensorrt_llm", "--max-seq-len", 256, *more)


@pytest.fixture(scope="module")
def built(host: Host, folder: Path) -> Done:
    done = host.build(*arguments(folder, "--quant", "fp8", "--name", "tiny-fp8", "--json"))
    assert done.code == 0, done.stderr
    return done


def test_an_engine_tells_what_it_was_made_of_and_by(built: Done, host: Host) -> None:
    manifest = built.json
    assert (manifest["backend"], manifest["quant"]) == ("tensorrt_llm", "fp8")
    assert manifest["compute_capability"] == "sm_90"
    assert manifest["gpu"]["name"] == "NVIDIA H100 80GB HBM3"
    assert manifest["toolchain"]["tensorrt_llm"] == "1.2.1"
    assert manifest["toolchain"]["tensorrt"] == "10.14.1.48"
    assert manifest["toolchain"]["nvidia-modelopt"] == "0.47.0"
    assert manifest["limits"]["max_seq_len"] == 256
    assert manifest["build_config"]["backend_options"]["max_seq_len"] == 256
    assert manifest["calibration"]["source"] == "built-in"
    assert manifest["calibration"]["num_tokens"] > 0
    assert [step["name"] for step in manifest["steps"]] == ["quantise", "verify", "compile"]
    assert not any(step["is_reused"] for step in manifest["steps"])
    assert manifest["quality"]["perplexity"] > 0
    assert manifest["checkpoint_report"]["is_structure_verified"]
    assert manifest["peak_host_bytes"] > 200 << 20  # torch alone
    paths = {entry["path"] for entry in manifest["files"]}
    assert {"engine/config.json", "engine/rank0.engine", "tokenizer/tokenizer.json", "build.log"} <= paths
    assert any(path.startswith("repository/tensorrt_llm/") for path in paths)
    store = EngineStore(host.home)
    store.verify(store.resolve("tiny-fp8"))


def test_the_steps_are_gone_when_the_engine_is_stored(built: Done, host: Host) -> None:
    assert not [path for path in (host.home / "engines" / ".steps").iterdir() if path.is_dir()]


def test_the_same_build_again_is_the_same_engine(built: Done, host: Host, folder: Path) -> None:
    again = host.build(*arguments(folder, "--quant", "fp8", "--json"))
    assert again.json["engine_id"] == built.json["engine_id"]
    assert "is this engine already" in again.stderr
    assert len(EngineStore(host.home).list("tiny-fp8")) == 1


def test_another_compiler_makes_another_engine_of_the_same_steps(
    host: Host, folder: Path, built: Done
) -> None:
    """A GPU of another kind is another engine id; nothing is said of the old one."""
    dry = host.build(
        *arguments(folder, "--quant", "fp8", "--dry-run", "--json"), gpus=[["NVIDIA L40S", 8, 9]]
    )
    assert dry.json["compute_capability"] == "sm_89"
    assert dry.json["engine_id"] != built.json["engine_id"]
    assert "trtllm-build" in dry.json["commands"][-1][0]


def test_an_engine_is_rendered_for_others_with_nvidias_text_models(
    host: Host, built: Done, tmp_path: Path
) -> None:
    templates = write_templates(tmp_path / "inflight_batcher_llm")
    output = tmp_path / "repository"
    more = ("--ensemble", templates, "--engine-root", "/srv/engine", "--output", output)
    done = host.run("engines", "render", "tiny-fp8", *more, "--json")
    assert done.code == 0, done.stderr
    names = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]
    assert done.json["models"] == names
    for name in names:
        config = pbtxt.read(output / name / "config.pbtxt")
        assert "${" not in str(config)
    assert "/srv/engine/engine" in (output / "tensorrt_llm" / "config.pbtxt").read_text()
    again = host.run("engines", "render", "tiny-fp8", *more)
    assert again.code == 2
    assert "there already" in again.stderr


def test_what_cannot_be_rendered_leaves_nothing(host: Host, built: Done, tmp_path: Path) -> None:
    more = ("--ensemble", tmp_path / "none", "--output", tmp_path / "repository")
    done = host.run("engines", "render", "tiny-fp8", *more)
    assert done.code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def checkpoint(host: Host, folder: Path) -> Path:
    """The quantised checkpoint alone, of a build that is to be killed and to fail later."""
    done = host.build(*arguments(folder, "--quant", "bf16", "--stop-after", "checkpoint", "--json"))
    assert done.code == 0, done.stderr
    return Path(done.json["checkpoint"])


def test_a_build_can_stop_at_its_checkpoint_and_go_on_from_there(checkpoint: Path) -> None:
    assert {path.name for path in checkpoint.iterdir()} == {"config.json", "rank0.safetensors"}


@pytest.mark.parametrize(
    ("fail", "cause"),
    [
        ("host_memory", "memory"),
        ("killed", "memory"),
        ("partial", "rank0.engine"),
        ("other_version", "1.1.0"),
    ],
)
def test_a_compiler_that_fails_leaves_the_store_as_it_was(
    host: Host, folder: Path, checkpoint: Path, fail: str, cause: str
) -> None:
    before = [engine.manifest.reference for engine in EngineStore(host.home).list()]
    done = host.build(*arguments(folder, "--quant", "bf16", "--name", "tiny-bf16"), fail=fail)
    assert done.code == 5, done.stderr
    assert cause in done.stderr
    assert "quantise: finished before" in done.stderr
    assert [engine.manifest.reference for engine in EngineStore(host.home).list()] == before
    assert "this is a bug" not in done.stderr


def test_a_build_killed_while_it_compiles_goes_on_after_its_checkpoint(
    host: Host, folder: Path, checkpoint: Path
) -> None:
    process = host.start(*arguments(folder, "--quant", "bf16", "--name", "tiny-bf16"), fail="hang")
    wait_until(lambda: bool(_compilers(host)), 300, "the compiler to start")
    process.kill()
    process.communicate(timeout=60)
    assert not EngineStore(host.home).list("tiny-bf16")
    done = host.build(*arguments(folder, "--quant", "bf16", "--name", "tiny-bf16", "--json"))
    assert done.code == 0, done.stderr
    reused = {step["name"]: step["is_reused"] for step in done.json["steps"]}
    assert reused == {"quantise": True, "verify": True, "compile": False}
    # the compiler of the killed build does not outlive it
    wait_until(lambda: not _compilers(host), 30, "the killed build's compiler to end")


def _compilers(host: Host) -> list[int]:
    """Return the processes of this machine's compiler."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [each.pid for each in found if str(host.compiler) in (each.info["cmdline"] or [])]


def test_two_builds_at_once_share_their_steps(host: Host, folder: Path) -> None:
    more = ("--quant", "int8_wo", "--name", "tiny-int8", "--json")
    first, second = (host.start(*arguments(folder, *more)) for _ in range(2))
    outputs = [process.communicate(timeout=600) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    ids = {json.loads(stdout)["engine_id"] for stdout, _ in outputs}
    assert len(ids) == 1
    assert len(EngineStore(host.home).list("tiny-int8")) == 1
    told = sorted("is this engine already" in stderr for _, stderr in outputs)
    assert told == [False, True], outputs  # one built it, the other waited for it


def test_a_gpu_that_cannot_run_the_scheme_is_refused_before_any_work(host: Host, folder: Path) -> None:
    done = host.build(*arguments(folder, "--quant", "fp8"), gpus=[["NVIDIA A100-SXM4-80GB", 8, 0]])
    assert done.code == 4
    assert "fp8 on sm_80" in done.stderr
    assert "hint:" in done.stderr
    assert "quantise" not in done.stderr.split("error:")[0]


@pytest.mark.parametrize("bound", ["nan", "inf", "-0.1"])
def test_a_bound_that_bounds_nothing_is_refused_before_anything(host: Host, folder: Path, bound: str) -> None:
    done = host.build(*arguments(folder, "--quant", "fp8", f"--max-quality-loss={bound}"))
    assert done.code == 2
    assert "max-quality-loss" in done.stderr
    assert "checkpoint:" not in done.stderr


def test_options_of_the_compiler_count_as_they_are_resolved(host: Host, folder: Path, built: Done) -> None:
    more = ("--quant", "fp8", "--trtllm-option", "max_beam_width=1", "--dry-run", "--json")
    assert host.build(*arguments(folder, *more)).json["engine_id"] == built.json["engine_id"]


def test_without_its_toolchain_one_line_says_what_installs_it(
    folder: Path, tmp_path: Path, host: Host
) -> None:
    bare = Host(tmp_path, {**host._environment, "TRTB_HOME": str(tmp_path)})
    done = bare.build(*arguments(folder, "--quant", "fp8", "--stop-after", "checkpoint"))
    assert done.code == 5
    assert "trtb toolchain install modelopt" in done.stderr
    shutil.rmtree(tmp_path / "models", ignore_errors=True)
