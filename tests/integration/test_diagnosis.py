"""Runs that are really bound by one thing or another: the diagnosis names it; of a stopped run, too."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import commands
import pytest
import request_lines
from request_lines import chat

from trtb.build.store import EngineStore
from trtb.runner.options import RunOptions
from trtb.runner.report import RunReport
from trtb.runner.reporting.samples import read_samples
from trtb.runner.run import run_batch
from trtb.tools.bench.noop import noop_server

pytestmark = pytest.mark.triton


def stories(count: int, num_tokens: int) -> list[dict[str, Any]]:
    """Return requests whose answers have just so many tokens."""
    return [
        chat(f"s-{n}", f"Tell story {n} of a river.", max_tokens=num_tokens, min_tokens=num_tokens)
        for n in range(count)
    ]


@pytest.fixture
def run(engine_home, tmp_path):
    """Run lines, on a server of the run's own unless told otherwise."""
    stored = EngineStore(engine_home).resolve()

    def run_lines(lines: list[dict[str, Any]], **fields: Any) -> RunReport:
        path = request_lines.write(tmp_path / "in.jsonl", lines)
        values = {"model_aliases": ("*",), "order": "input", "dedup": False, **fields}
        return run_batch(RunOptions(path, tmp_path / "out.jsonl", stored.path, stored.manifest, **values))

    return run_lines


def of_running(made: RunReport) -> str:
    """Return the cause that took most of the time of answering; the start is every test's own cost."""
    assert made.diagnosis
    print(made.diagnosis.model_dump_json(indent=2))
    found = [each.kind for each in made.diagnosis.bottlenecks if each.kind not in ("start_up", "planning")]
    assert found, made.diagnosis
    return found[0]


def test_one_request_at_a_time_is_low_concurrency(run, shared_server):
    made = run(stories(12, 40), concurrency=1, endpoints=(shared_server.endpoint,))
    assert of_running(made) == "concurrency"
    assert any(warning.startswith("low concurrency: ") for warning in made.warnings)


def test_a_full_batch_is_bound_by_the_engine(run, tmp_path):
    made = run(stories(96, 48), concurrency=48)
    assert of_running(made) == "engine"
    assert not any(warning.startswith("low concurrency: ") for warning in made.warnings)
    samples = read_samples(tmp_path / "out.jsonl.run")
    assert sum(sample.server_cpu_s or 0.0 for sample in samples) > 1.0  # of our own server all is seen
    assert max(sample.engine_active or 0.0 for sample in samples) > 10
    assert max(sample.server_rss_bytes or 0 for sample in samples) > 100 << 20


def test_a_pool_too_small_is_named(run):
    made = run(stories(20, 120), num_kv_blocks=32)
    assert of_running(made) == "kv_pool"
    assert made.max_in_flight < 10


def test_one_long_answer_after_all_others_is_a_long_tail(run, shared_server):
    lines = [*stories(24, 8), chat("long", "Tell all.", max_tokens=300, min_tokens=300)]
    made = run(lines, concurrency=12, endpoints=(shared_server.endpoint,))
    assert of_running(made) == "long_tail"
    assert any("--order length" in warning for warning in made.warnings)


def test_long_prompts_for_an_engine_that_costs_nothing_are_tokenisation(run, tmp_path):
    chance = random.Random(3)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(20_000)]
    lines = [chat(f"t-{n}", " ".join(chance.choices(words, k=1500)), max_tokens=1) for n in range(3000)]
    with noop_server(tmp_path / "server") as endpoint:
        made = run(lines, endpoints=(endpoint,))
    assert of_running(made) == "tokenisation"


def test_what_only_the_client_does_for_an_engine_that_costs_nothing_is_the_client(run, tmp_path):
    # stop strings are looked at when a request is sent, and matched when its answer comes
    stops = [" ".join(f"{word}{number}" for number in range(400)) for word in "abcd"]
    lines = [chat(f"c-{n}", f"Say {n}.", max_tokens=16, n=16, stop=stops) for n in range(700)]
    with noop_server(tmp_path / "server") as endpoint:
        made = run(lines, endpoints=(endpoint,))
    assert of_running(made) == "client"


def test_samples_outlive_a_kill_and_an_interrupted_run_is_diagnosed(engine_home, tmp_path):
    requests = request_lines.write(tmp_path / "in.jsonl", stories(60, 60))
    output, folder = tmp_path / "out.jsonl", tmp_path / "out.jsonl.run"
    command = ("run", requests, "-o", output, "--concurrency", 4, "--json")
    process = commands.start(engine_home, *command)
    commands.wait_until(lambda: len(read_samples(folder)) >= 2, 120, "samples")
    process.kill()
    process.communicate()
    kept = read_samples(folder)
    assert len(kept) >= 2
    process = commands.start(engine_home, *command)
    commands.wait_until(lambda: len(read_samples(folder)) >= len(kept) + 3, 120, "more samples")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert read_samples(folder)[: len(kept)] == kept
    assert {sample.session for sample in read_samples(folder)} == {1, 2}
    told = commands.trtb(engine_home, "report", Path(folder), "--json").json
    assert told["state"] == "interrupted"
    assert told["diagnosis"]["num_samples"] >= 3
    assert "concurrency" in [each["kind"] for each in told["diagnosis"]["bottlenecks"]]
    shown = commands.trtb(engine_home, "report", Path(folder)).stdout
    assert "\nbottleneck " in shown
    assert "to change: --concurrency 32" in shown
