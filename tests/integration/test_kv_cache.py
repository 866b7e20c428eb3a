"""The KV cache as it is asked for: on the CPU engine, and on a stand-in of TensorRT-LLM that keeps account.

The stand-in refuses what TensorRT-LLM would, evicts as it does, and writes down what it was asked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest
import request_lines
from fakes.gpu_image import GpuImage, install
from fakes.nvml_library import Machine
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine
from request_lines import chat

from trtb.build.manifest import file_entries
from trtb.build.store import EngineStore
from trtb.runner.engine_request import OWN_PRIORITY, SHARED_PRIORITY

pytestmark = [pytest.mark.triton, pytest.mark.slow]

NUM_PREFIXES = 4
LINES_OF_EACH = 12
NUM_KV_BLOCKS = 300


@pytest.fixture
def image(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> GpuImage:
    """NVIDIA's image, and four GPUs, in this process's environment, which its commands inherit."""
    image = install(tmp_path / "fake")
    driver = Machine(("h100",) * 4).environment(tmp_path_factory.getbasetemp() / "nvml", tmp_path)
    for name, value in {**driver, **image.environment()}.items():
        monkeypatch.setenv(name, value)
    return image


@pytest.fixture
def gpu_home(engine_home: Path, tmp_path: Path) -> Path:
    """A home with an engine of one GPU, with the tokenizer of the real one."""
    real = EngineStore(engine_home).resolve()
    manifest = fake_trtllm_manifest(
        name="tiny-fp8", model="llama-3.1-8b", tokens=real.manifest.tokens
    ).model_copy(update={"model": real.manifest.model})
    store = EngineStore(tmp_path / "home")
    with store.stage() as staged:
        write_trtllm_engine(staged, manifest)
        shutil.copytree(real.path / "tokenizer", staged / "tokenizer", dirs_exist_ok=True)
        store.commit(staged, manifest.model_copy(update={"files": file_entries(staged)}))
    return tmp_path / "home"


def shared_file(path: Path, num_prefixes: int, lines_of_each: int) -> Path:
    """Write a file whose requests begin alike in groups; the groups are strewn over it."""

    def text(line: int, prefix: int) -> str:
        rules = " ".join(f"Rule {prefix}.{rule}: words of {rule} letters are fine." for rule in range(24))
        return f"{rules} Question {line}?"

    lines = [
        chat(f"{line}-{prefix}", text(line, prefix), max_tokens=4)
        for line in range(lines_of_each)
        for prefix in range(num_prefixes)
    ]
    return request_lines.write(path, lines)


def run(home: Path, path: Path, output: Path, *options: object) -> dict[str, Any]:
    done = commands.trtb(home, "run", path, "--model-alias", "*", *options, "-o", output, "--json")
    assert done.code == 0, done.stderr
    return done.json


def asked_of(image: GpuImage) -> dict[str, dict[str, Any]]:
    """Return what the stand-in was asked, by request; probes apart."""
    calls = image.calls("requests")
    return {call["id"]: call for call in calls if call["id"] != "probe"}


def test_a_gpu_server_is_filled_by_its_own_pool_and_told_what_to_keep(gpu_home, image, tmp_path):
    path = shared_file(tmp_path / "in.jsonl", NUM_PREFIXES, LINES_OF_EACH)
    made = run(gpu_home, path, tmp_path / "out.jsonl", "--num-kv-blocks", NUM_KV_BLOCKS, "--order", "prefix")
    assert made["admission"]["num_kv_blocks"] == NUM_KV_BLOCKS - 1
    assert 0 < made["admission"]["max_blocks_held"] < NUM_KV_BLOCKS
    schedule = made["schedule"]
    assert schedule["num_leaders"] >= NUM_PREFIXES
    assert schedule["seen_by"] == "engine counters"
    assert schedule["expected_reuse"] > 0.5
    assert schedule["seen_reuse"] == pytest.approx(schedule["expected_reuse"], abs=0.1)

    asked = asked_of(image)
    leaders = [call for name, call in asked.items() if "prefix" in name]
    lines = [call for name, call in asked.items() if "prefix" not in name]
    assert len(leaders) == schedule["num_leaders"]
    assert len(lines) == NUM_PREFIXES * LINES_OF_EACH
    assert all(each["ranges"] == [[0, each["num_ids"], SHARED_PRIORITY]] for each in leaders)
    for line in lines:
        (_, shared, first), (start, end, second) = line["ranges"]
        assert (start, end) == (shared, line["num_ids"])
        assert (first, second, line["decode_priority"]) == (SHARED_PRIORITY, OWN_PRIORITY, OWN_PRIORITY)
        assert line["reused_blocks"] >= shared // 32

    reused = sum(line["reused_blocks"] for line in lines)
    assert made["kv_cache"] == {
        "num_requests": len(lines),
        "prompt_tokens": sum(line["num_ids"] for line in lines),
        "reused_blocks": reused,
    }
    usages = [line["response"]["body"]["usage"] for line in request_lines.read(tmp_path / "out.jsonl")]
    assert sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) == reused * 32


def test_without_reuse_nothing_is_led_kept_or_counted_as_reused(gpu_home, image, tmp_path):
    path = shared_file(tmp_path / "in.jsonl", NUM_PREFIXES, 3)
    made = run(gpu_home, path, tmp_path / "out.jsonl", "--no-kv-reuse")
    assert (made["schedule"]["order"], made["schedule"]["why"]) == ("input", "the engine reuses no prefixes")
    assert all(not call["ranges"] for call in asked_of(image).values())
    assert made["kv_cache"]["reused_blocks"] == 0


def test_the_cpu_engine_computes_what_is_shared_once_or_each_time_as_asked(engine_home, tmp_path):
    """Without reuse the prompts that come again are computed again, which shows in the first token's time."""
    path = shared_file(tmp_path / "in.jsonl", 1, 4)
    common = ("--deterministic", "--concurrency", 1, "--order", "input", "--kv-cache-gb", 0.2)
    on = run(engine_home, path, tmp_path / "on.jsonl", *common)
    off = run(engine_home, path, tmp_path / "off.jsonl", *common, "--no-kv-reuse")
    pool = int(0.2e9) // (46_080 * 32)
    assert on["admission"]["num_kv_blocks"] == off["admission"]["num_kv_blocks"] == pool - 1
    assert on["kv_cache"] is None, "the CPU engine counts nothing, and nothing is made up"
    texts = [
        [line["response"]["body"]["choices"] for line in request_lines.read(tmp_path / name)]
        for name in ("on.jsonl", "off.jsonl")
    ]
    contents = [[choice["message"]["content"] for (choice,) in answers] for answers in texts]
    assert contents[0] == contents[1]
    assert on["ttft"]["p50_ms"] < 0.5 * off["ttft"]["p50_ms"]


def test_a_cache_of_eight_bits_holds_more_and_promises_less(engine_home, tmp_path):
    path = shared_file(tmp_path / "in.jsonl", 2, 3)
    made = run(engine_home, path, tmp_path / "out.jsonl", "--kv-cache-dtype", "int8", "--kv-cache-gb", 0.2)
    assert made["admission"]["num_kv_blocks"] == int(0.2e9) // 437_760 - 1
    assert made["is_exact"] is False
    assert "kv_cache_dtype: int8" in (tmp_path / "out.jsonl.run" / "job.yaml").read_text()
    record = json.loads((tmp_path / "out.jsonl.run" / "run.json").read_text())
    assert record["settings"]["kv_cache_dtype"] == "int8", "a resume in another precision is another run"
