"""Orders, equal requests and admission on the real engine: what is answered never depends on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import request_lines
from request_lines import chat

from trtb.build.store import EngineStore
from trtb.runner import ledger
from trtb.runner.options import RunOptions
from trtb.runner.report import RunReport
from trtb.runner.run import run_batch
from trtb.runner.run_folder import RunPaths

pytestmark = pytest.mark.triton

CASES = Path(__file__).parents[1] / "data" / "cases"


@pytest.fixture
def run(shared_server, tmp_path):
    """Run a file on the shared server; returns the report and the output records."""
    stored = EngineStore(shared_server.home).resolve()

    def run_file(path: Path, name: str = "out", **fields: Any) -> tuple[RunReport, list[dict[str, Any]]]:
        values = {"endpoints": (shared_server.endpoint,), "model_aliases": ("smollm2-135m",), **fields}
        output = tmp_path / f"{name}.jsonl"
        made = run_batch(RunOptions(path, output, stored.path, stored.manifest, **values))
        return made, request_lines.read(output)

    return run_file


def contents(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what was said to each custom_id, without what names the run."""
    return {
        record["custom_id"]: [
            (choice["message"]["content"], choice["finish_reason"])
            for choice in record["response"]["body"]["choices"]
        ]
        for record in records
    }


def test_equal_requests_are_computed_once_and_say_so(run, tmp_path):
    path = CASES / "identical-prompts-greedy.jsonl"
    made, records = run(path)
    assert (made.completed, made.attempts, made.reused) == (16, 1, 15)
    assert [record["custom_id"] for record in records] == [f"same-{number:02}" for number in range(16)]
    assert len({str(content) for content in contents(records).values()}) == 1
    usages = [record["response"]["body"]["usage"] for record in records]
    assert len({str(usage) for usage in usages}) == 1  # whose answer it is stands in the ledger
    assert len({record["id"] for record in records}) == 16
    rows = list(ledger.read_rows(RunPaths(tmp_path / "out.jsonl").ledger))
    assert sorted(row.attempts for row in rows) == [0] * 15 + [1]
    assert [row.reused_from for row in rows] == [None] + ["equal"] * 15
    every, all_records = run(path, "all", dedup=False)
    assert (every.attempts, every.reused) == (16, 0)
    assert contents(all_records) == contents(records)


def test_every_order_gives_the_same_answers_and_prefix_says_what_it_reused(run):
    path = CASES / "shared-prefix-order.jsonl"
    found = {order: run(path, order, order=order) for order in ("input", "prefix", "length", "auto")}
    total = len(request_lines.read(path))
    assert [made.completed for made, _ in found.values()] == [total] * 4
    expected = contents(found["input"][1])
    assert all(contents(records) == expected for _, records in found.values())
    assert all([record["custom_id"] for record in records] == list(expected) for _, records in found.values())
    schedule = found["prefix"][0].schedule
    assert schedule
    assert (schedule.num_prefixes, schedule.num_leaders) == (4, 4)
    assert schedule.num_grouped == total
    assert schedule.expected_reuse
    assert 0.3 < schedule.expected_reuse < 5 / 6  # of six lines a prefix, one computes it
    # whether the times tell it is the machine's; it is told, or said why not
    assert (schedule.seen_by == "derived from prefill times") is (schedule.seen_reuse is not None)
    assert (schedule.unseen_why is None) is (schedule.seen_reuse is not None)
    auto = found["auto"][0].schedule
    assert auto
    assert auto.order == "prefix"


def test_a_file_of_every_kind_of_line_is_answered_alike_in_every_order(run, tmp_path):
    chance = random.Random(7)
    system = "You are one of the clerks of a very large archive. " * 8
    lines = []
    for number in range(24):
        text = f"{system}{'Be brief. ' * 12 if number % 2 else ''}Item {number % 9}: say it."
        lines.append(chat(f"l-{number}", text, max_tokens=chance.choice([2, 5])))
    lines[3]["body"] |= {"temperature": 1, "seed": 5, "n": 2}
    lines[4]["body"] |= {"temperature": 1}
    lines[8]["body"] |= {"stop": [" "]}
    lines[11]["body"] |= {"max_tokens": 100_000}
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    found = [
        run(path, f"{order}-{concurrency}", order=order, concurrency=concurrency, queue_size=3)
        for order, concurrency in (("input", 1), ("prefix", 9), ("length", 4))
    ]
    kept = []
    for made, records in found:
        assert (made.completed, made.failed) == (23, 1)
        assert records[11]["error"]["code"] == "context_length_exceeded"
        kept.append(contents([record for record in records if not record["error"]]))
    assert kept[0] == kept[1] == kept[2]


def test_a_pool_that_is_asked_for_too_much_answers_everything(run, tmp_path):
    # each may come to 49 of 399 blocks, so 8 go at first; they end after a word
    lines = [chat(f"p-{n}", f"Say {n} words.", max_tokens=1500, stop=[" "]) for n in range(24)]
    made, _ = run(request_lines.write(tmp_path / "in.jsonl", lines), concurrency=64)
    assert (made.completed, made.failed) == (24, 0)
    assert made.max_in_flight == 8
    assert made.admission
    assert made.admission.num_kv_blocks == 399
    assert made.admission.max_blocks_held <= 399
