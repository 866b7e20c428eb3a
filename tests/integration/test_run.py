"""Whole runs on the real server: every line of a file ends as it must."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import commands
import pytest
import request_lines
from request_lines import chat

from trtb.build.store import EngineStore
from trtb.runner import ledger
from trtb.runner.errors import InputRefusedError, OutputExistsError
from trtb.runner.options import RunOptions
from trtb.runner.run import run_batch
from trtb.runner.run_folder import RunPaths

pytestmark = pytest.mark.triton

CASES = Path(__file__).parents[1] / "data" / "cases"
OK = "completed"
ACTIVE = {"name": "nv_trt_llm_request_metrics", "request_type": "active"}


@pytest.fixture
def options(shared_server, tmp_path):
    """Return options of a run on the shared server."""
    stored = EngineStore(shared_server.home).resolve()

    def make(input_path: Path, output: Path | None = None, **fields: Any) -> RunOptions:
        values = {
            "endpoints": (shared_server.endpoint,),
            "model_aliases": ("smollm2-135m",),
            "default_max_tokens": 4,
            **fields,
        }
        return RunOptions(
            input_path, output or tmp_path / "out.jsonl", stored.path, stored.manifest, **values
        )

    return make


def ends(output: Path) -> list[tuple[str | None, str]]:
    """Return (custom_id, "completed" or the failure's code) of every output line."""
    records = request_lines.read(output)
    return [(record["custom_id"], record["error"]["code"] if record["error"] else OK) for record in records]


def text_of(record: dict[str, Any]) -> str:
    return record["response"]["body"]["choices"][0]["message"]["content"]


def active(url: str) -> float:
    return commands.metric(url, ACTIVE["name"], request_type="active")


INVALID = "invalid_request"
JSON = "invalid_json_line"
EXPECTED: dict[str, list[tuple[str | None, str]]] = {
    "bom-first-line": [("bom-1", OK), ("bom-2", OK)],
    "crlf-line-ends": [("crlf-1", OK), ("crlf-2", OK)],
    "no-newline-at-eof": [("eof-1", OK), ("eof-2", OK)],
    "broken-json-middle-line": [("bj-1", OK), (None, JSON), ("bj-3", OK)],
    "latin1-bytes": [("l1-1", OK), (None, "invalid_encoding"), ("l1-3", OK)],
    "lone-surrogate-in-input": [(None, JSON), ("sur-2", OK)],
    "duplicate-custom-id": [("dup", OK), ("ok-1", OK), ("dup", "duplicate_custom_id")],
    "custom-id-missing-empty-space": [
        (None, INVALID), (None, INVALID), (None, INVALID), (" pad", OK), ("pad", OK)
    ],
    "url-unknown-mixed": [("u-1", OK), *((f"u-{n}", "unsupported_endpoint") for n in (2, 3, 4))],
    "url-azure-style": [("az-1", OK), ("az-2", OK)],
    "completions-endpoint": [("cmp-1", OK), ("cmp-2", OK), ("cmp-3", OK)],
    "method-not-post": [("m-1", INVALID), ("m-2", INVALID), ("m-3", INVALID)],
    "model-mismatch": [("mm-1", OK), ("mm-2", "model_mismatch"), ("mm-3", "model_mismatch")],
    "max-completion-tokens": [("mct-1", OK), ("mct-2", OK), ("mct-3", OK)],
    "max-tokens-bad": [
        ("mt-0", INVALID), ("mt-neg", INVALID), ("mt-float", INVALID), ("mt-str", INVALID),
        ("mt-huge", "context_length_exceeded"), ("mt-null", OK), ("mt-ok", OK),
    ],
    "temperature-bad": [
        (None, JSON), (None, JSON), ("t-neg", INVALID), ("t-tiny", OK), ("t-big", INVALID),
        ("t-str", INVALID), ("t-ok", OK),
    ],
    "content-null-parts-empty": [
        ("c-null", OK), ("c-usernull", INVALID), ("c-parts", OK), ("c-image", "unsupported_parameter"),
        ("c-empty", OK), ("c-emptyparts", INVALID),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_every_line_of_a_faulty_file_ends_as_it_must(name, options, tmp_path):
    path = CASES / f"{name}.jsonl"
    made = run_batch(options(path, on_invalid="fail"))
    expected = EXPECTED[name]
    num_completed = sum(code == OK for _, code in expected)
    assert ends(tmp_path / "out.jsonl") == expected
    assert (made.total, made.completed, made.failed) == (
        len(expected),
        num_completed,
        len(expected) - num_completed,
    )
    records = {record["custom_id"]: record for record in request_lines.read(tmp_path / "out.jsonl")}
    if name == "temperature-bad":
        assert text_of(records["t-tiny"]) == text_of(records["t-ok"]) != ""
    if name == "max-completion-tokens":
        body = records["mct-1"]["response"]["body"]
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 3
        assert records["mct-2"]["response"]["body"]["usage"]["completion_tokens"] == 3
    if name == "completions-endpoint":
        choices = records["cmp-2"]["response"]["body"]["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]


@pytest.mark.parametrize("name", ["empty-file", "only-whitespace-lines"])
@pytest.mark.parametrize("on_invalid", ["refuse", "fail"])
def test_a_file_without_requests_is_refused_and_leaves_nothing(name, on_invalid, options, tmp_path):
    with pytest.raises(InputRefusedError) as caught:
        run_batch(options(CASES / f"{name}.jsonl", on_invalid=on_invalid))
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_faulty_file_is_refused_by_default_and_nothing_runs(options, tmp_path):
    with pytest.raises(InputRefusedError) as caught:
        run_batch(options(CASES / "broken-json-middle-line.jsonl"))
    assert list(caught.value.report.invalid_lines) == [2]
    assert list(tmp_path.iterdir()) == []


def test_unknown_keys_are_said_and_what_cannot_be_honoured_is_an_error(options, tmp_path):
    path = CASES / "unknown-top-level-and-body-keys.jsonl"
    made = run_batch(options(path, on_invalid="fail"))
    (x1, _), (x2, _) = ends(tmp_path / "out.jsonl")
    assert (x1, x2) == ("x-1", "x-2")
    assert any("priority" in warning for warning in made.warnings)
    strict = run_batch(options(path, tmp_path / "strict.jsonl", on_invalid="fail", strict_params=True))
    assert strict.failed >= 1


def test_a_prompt_longer_than_the_engine_fails_alone_and_is_not_sent(options, tmp_path):
    lines = [
        chat("pl-1", max_tokens=2),
        chat("pl-2", "word " * 13_000, max_tokens=8),
        chat("pl-3", max_tokens=2),
    ]
    lines.append(chat("pl-4", "word " * 100_000))
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    made = run_batch(options(path, dedup=False))
    long = "context_length_exceeded"
    assert ends(tmp_path / "out.jsonl") == [("pl-1", OK), ("pl-2", long), ("pl-3", OK), ("pl-4", long)]
    assert made.attempts == 2
    message = request_lines.read(tmp_path / "out.jsonl")[1]["error"]["message"]
    assert "max_tokens 8" in message


@pytest.mark.parametrize(
    ("limit", "code"), [(1 << 20, "line_too_long"), (16 << 20, "context_length_exceeded")]
)
def test_a_very_long_line_fails_alone_in_bounded_memory(options, tmp_path, limit, code):
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        for name, repeats in (("long-0", 1), ("long-1", 8 << 18), ("long-2", 1)):
            file.write(json.dumps(chat(name, "word " * repeats, max_tokens=2)) + "\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_batch(options(path, max_line_bytes=limit, on_invalid="fail"))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    name = None if code == "line_too_long" else "long-1"
    assert ends(tmp_path / "out.jsonl") == [("long-0", OK), (name, code), ("long-2", OK)]
    assert grown * 1024 < 12 * path.stat().st_size


def test_where_all_fail_the_failures_are_grouped_and_the_retry_file_is_the_input(options, tmp_path):
    lines = [chat(f"f-{number}", model="no-such-model") for number in range(5)]
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    made = run_batch(options(path, on_invalid="fail"))
    assert (made.total, made.completed, made.failed) == (5, 0, 5)
    assert [(group.code, group.count) for group in made.failures] == [("model_mismatch", 5)]
    assert made.failures[0].samples == ["f-0", "f-1", "f-2"]
    paths = RunPaths(tmp_path / "out.jsonl")
    assert paths.failed.read_bytes() == paths.output.read_bytes()
    assert paths.retry.read_bytes() == path.read_bytes()


def test_the_input_is_never_written_and_a_finished_run_is_not_run_again(options, tmp_path):
    path = request_lines.write(tmp_path / "a.jsonl", [chat("a", max_tokens=2)])
    before = path.read_bytes()
    link, hard = tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    link.symlink_to(path)
    os.link(path, hard)
    for output in (path, link, hard, tmp_path / "." / "a.jsonl"):
        with pytest.raises(OutputExistsError):
            run_batch(options(path, output))
    run_batch(options(path))
    published = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(OutputExistsError, match="finished"):
        run_batch(options(path))
    assert path.read_bytes() == before
    assert (tmp_path / "out.jsonl").read_bytes() == published
    run_batch(options(path, overwrite=True))


def test_a_slow_request_times_out_from_when_it_was_sent_and_frees_the_engine(
    options, shared_server, tmp_path
):
    lines = [chat(f"s-{number}", f"Count to {number}.", max_tokens=2) for number in range(20)]
    lines[3] = chat("slow", "Tell a very long story.", max_tokens=4000, min_tokens=4000)
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    seen: list[float] = []
    made = run_batch(
        options(path, request_timeout_s=2.0, concurrency=4), lambda _: seen.append(time.monotonic())
    )
    codes = dict(ends(tmp_path / "out.jsonl"))
    assert codes.pop("slow") == "timeout"
    assert set(codes.values()) == {OK}
    assert made.attempts == 20  # a timeout is not tried again
    commands.wait_until(lambda: active(shared_server.metrics_url) == 0, 5, "the engine stops working on it")
    rows = list(ledger.read_rows(RunPaths(tmp_path / "out.jsonl").ledger))
    first_sent_ns = min(row.finished_ns - row.latency_ns for row in rows if row.status == "completed")
    (slow,) = [row for row in rows if row.custom_id == "slow"]
    assert 1.9 < (slow.finished_ns - first_sent_ns) / 1e9 < 3.5


@pytest.mark.parametrize(("concurrency", "num_requests"), [(1, 12), (4, 60), (32, 128)])
def test_as_many_are_in_flight_as_asked_for_and_never_more(
    options, shared_server, tmp_path, concurrency, num_requests
):
    lines = [chat(f"n-{number}", f"Number {number}.", max_tokens=4) for number in range(num_requests)]
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    gauges: list[float] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(0.1):
            gauges.append(active(shared_server.metrics_url))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        made = run_batch(options(path, concurrency=concurrency))
    finally:
        is_over.set()
        sampler.join()
    assert made.completed == num_requests
    assert made.max_in_flight == concurrency
    assert max(gauges) <= concurrency
    rows = list(ledger.read_rows(RunPaths(tmp_path / "out.jsonl").ledger))
    spans = [(row.finished_ns - row.latency_ns, row.finished_ns) for row in rows]
    begin = sorted(start for start, _ in spans)[concurrency - 1]
    end = max(start for start, _ in spans)
    busy = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans)
    assert busy / (end - begin) >= 0.95 * concurrency


def test_equal_greedy_prompts_have_equal_answers_alone_and_in_company(options, tmp_path):
    lines = [chat(f"same-{number:02}", "List three colours.", max_tokens=8) for number in range(16)]
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    texts = set()
    for concurrency in (1, 16):
        output = tmp_path / f"out-{concurrency}.jsonl"
        run_batch(options(path, output, concurrency=concurrency, dedup=False))
        texts |= {text_of(record) for record in request_lines.read(output)}
    assert len(texts) == 1


def test_failures_are_retried_alone_and_the_output_is_complete_again(options, shared_server, tmp_path):
    lines = [chat("a", max_tokens=2), chat("late", max_tokens=3000, min_tokens=3000), chat("c", max_tokens=2)]
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    run_batch(options(path, request_timeout_s=1.0, follow=tmp_path / "follow.jsonl"))
    first = request_lines.read(tmp_path / "out.jsonl")
    assert ends(tmp_path / "out.jsonl")[1] == ("late", "timeout")
    again = commands.trtb(
        shared_server.home, "retry", tmp_path / "out.jsonl.run", "--request-timeout", "1.5", "--json"
    )
    assert again.code == 1, again.stderr
    assert again.json["resumed"] == 2
    second = request_lines.read(tmp_path / "out.jsonl")
    assert (second[0], second[2]) == (first[0], first[2])
    with closing(sqlite3.connect(tmp_path / "out.jsonl.run" / "ledger.db")) as connection:
        assert connection.execute("SELECT count(*) FROM superseded").fetchone() == (1,)
    other = commands.trtb(
        shared_server.home, "retry", tmp_path / "out.jsonl", "--code", "engine_error", "--json"
    )
    assert (other.code, other.json["num_retried"], other.json["num_failed"]) == (1, 0, 1)
