"""`trtb preflight` and `trtb plan` as a person types them, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import request_lines
from fakes.model_sizes import CONFIGS
from request_lines import chat

from trtb.build.files import write_atomic
from trtb.build.store import EngineStore
from trtb.runner.job_file import read_job_file

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def engine(engine_home: Path) -> str:
    return EngineStore(engine_home).resolve().manifest.reference


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    lines = [chat(f"id-{number}", f"Count to {number}.", max_tokens=40) for number in range(20)]
    return request_lines.write(tmp_path / "in.jsonl", lines)


def test_this_machine_fits_the_default_backend_and_its_engine(engine_home: Path, engine: str) -> None:
    done = commands.trtb(engine_home, "preflight", "--json")
    assert done.code == 0, done.stdout
    assert done.json["ok"]
    assert {"reference": engine, "runs_on": ["CPU"]} in done.json["engines"]
    assert not [found for found in done.json["findings"] if found["severity"] == "blocks"]
    named = commands.trtb(engine_home, "preflight", "--engine", engine)
    assert named.code == 0, named.stdout
    assert named.stdout.endswith("fits\n")


@pytest.mark.slow
def test_the_deep_test_generates_with_a_real_server(engine_home: Path, engine: str) -> None:
    done = commands.trtb(engine_home, "preflight", "--deep", "--json")
    assert done.code == 0, done.stderr
    measured = {row["what"]: row for row in done.json["measured"]}
    assert measured["generation"]["tokens_per_s"] > 0
    assert engine in measured["generation"]["text"]
    assert measured["disk"]["bytes_per_s"] > 0


def test_a_deep_test_without_an_engine_says_what_it_could_not_measure(tmp_path: Path) -> None:
    done = commands.trtb(tmp_path / "home", "preflight", "--deep")
    assert done.code == 0, done.stderr
    assert "generation: not measured: no engine in the store" in done.stdout
    assert not (tmp_path / "home").exists()


def test_an_edited_manifest_is_refused_before_a_server_starts(
    engine_home: Path, engine: str, tmp_path: Path
) -> None:
    stored = EngineStore(engine_home).resolve(engine)
    home = tmp_path / "home"
    folder = home / stored.path.relative_to(engine_home)
    folder.mkdir(parents=True)
    manifest = json.loads((stored.path / "manifest.json").read_bytes())
    versions = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}
    manifest |= {"backend": "tensorrt_llm", "compute_capability": "sm_90", "toolchain": versions}
    write_atomic(folder / "manifest.json", json.dumps(manifest).encode())
    done = commands.trtb(home, "preflight", "--engine", engine, "--json")
    assert done.code == 4, done.stdout + done.stderr
    blocking = [found for found in done.json["findings"] if found["severity"] == "blocks"]
    (runtime,) = [found for found in blocking if found["code"] == "runtime_missing"]
    assert "TensorRT-LLM 1.2.1, TensorRT 10.14.1.48 for sm_90" in runtime["found"]
    assert "26.07-trtllm-python-py3" in runtime["hint"]


def test_a_70b_build_is_refused_here_with_numbers(tmp_path: Path) -> None:
    config = CONFIGS / "llama-3.1-70b.json"
    for backend in ("openvino", "tensorrt_llm"):
        done = commands.trtb(
            tmp_path, "preflight", "--model", config, "--quant", "int4_awq", "--backend", backend
        )
        assert done.code == 4
        assert "host_memory_small" in done.stdout


def test_a_plan_of_a_file_is_written_as_a_job_that_is_read_again(
    engine_home: Path, engine: str, batch: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    done = commands.trtb(engine_home, "plan", "--engine", engine, "--input", batch, "--write", job, "--json")
    assert done.code == 0, done.stdout
    planned = done.json
    assert planned["fits"]
    assert planned["workload"]["num_requests"] == 20
    assert planned["workload"]["output_tokens"] == 20 * 40
    read = read_job_file(job)
    assert read.options["engine"] == engine
    assert read.options["input_path"] == batch
    assert read.options["num_kv_blocks"] == planned["memory"]["num_blocks"]
    assert f"run it: trtb run --config {job}" in done.stderr
    again = commands.trtb(engine_home, "plan", "--engine", engine, "--input", batch, "--write", job)
    assert again.code == 2
    assert "exists" in again.stderr


def test_a_file_is_counted_alike_with_the_engine_and_with_its_checkpoint(
    engine_home: Path, engine: str, batch: Path
) -> None:
    by_engine = commands.trtb(engine_home, "plan", "--engine", engine, "--input", batch, "--json")
    model = EngineStore(engine_home).resolve(engine).manifest.checkpoint.name
    by_model = commands.trtb(engine_home, "plan", "--model", model, "--input", batch, "--json")
    assert by_engine.json["workload"] == by_model.json["workload"]
    assert by_model.json["memory"]["weight_bytes"] == pytest.approx(
        next(
            entry.size_bytes
            for entry in EngineStore(engine_home).resolve(engine).manifest.files
            if entry.path == "openvino_model.bin"
        ),
        rel=0.03,
    )


def test_a_plan_for_gpus_that_are_not_here(tmp_path: Path, batch: Path) -> None:
    config = CONFIGS / "llama-3.1-8b.json"
    load = ("--num-requests", 1000, "--prompt-tokens", 500, "--output-tokens", 2000)
    done = commands.trtb(
        tmp_path, "plan", "--model", config, "--quant", "fp8", "--gpu", "h100", *load, "--gpu-hour-cost", 2
    )
    assert done.code == 0, done.stderr
    assert "16501 output tokens/s: Llama-3.1-8B as fp8" in done.stdout
    assert "an estimate" in done.stdout
    refused = commands.trtb(tmp_path, "plan", "--model", config, "--quant", "fp8", "--gpu", "T4")
    assert refused.code == 4
    assert "sm_80 or newer" in refused.stdout
    counted = commands.trtb(tmp_path, "plan", "--model", config, "--gpu", "h100", "--input", batch)
    assert counted.code == 2
    assert "tokenizer" in counted.stderr


def test_the_job_of_a_model_names_the_build_and_runs_with_any_engine_of_it(
    engine_home: Path, engine: str, batch: Path, tmp_path: Path
) -> None:
    stored = EngineStore(engine_home).resolve(engine)
    model, job = stored.manifest.checkpoint.name, tmp_path / "job.yaml"
    done = commands.trtb(engine_home, "plan", "--model", model, "--input", batch, "--write", job)
    assert done.code == 0, done.stderr
    assert f"trtb build --model {model} --backend openvino" in done.stderr
    assert "KV cache" in done.stdout
    assert "tokens;" in done.stdout
    assert read_job_file(job).max_seq_len is None
    assert read_job_file(job).model_path == model


def test_nothing_heavy_is_loaded_for_a_plan_of_a_config(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from trtb.tools.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})), file=sys.stderr)\n"
    )
    config = CONFIGS / "llama-3.1-8b.json"
    child = subprocess.run(
        [sys.executable, "-c", code, "plan", "--model", config, "--quant", "fp8", "--gpu", "H100"],
        check=False,
        capture_output=True,
        text=True,
        cwd=sys.prefix,
    )
    assert "fits" in child.stdout
    modules = set(json.loads(child.stderr.splitlines()[-1]))
    assert not modules & {"torch", "transformers", "openvino", "nncf", "gguf", "tritonclient", "pynvml"}
