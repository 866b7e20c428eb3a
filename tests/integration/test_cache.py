"""The result cache with the real engine: the second run starts nothing, and writes the same bytes."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from pathlib import Path
from typing import Any

import commands
import pytest
import request_lines
from request_lines import chat, completion

from trtb.build.store import EngineStore
from trtb.runner import ledger
from trtb.runner.caching.cache_file import FILE_NAME
from trtb.runner.errors import RunInterruptedError
from trtb.runner.options import Progress, RunOptions
from trtb.runner.report import RunReport
from trtb.runner.run import run_batch
from trtb.runner.run_folder import RunPaths

pytestmark = pytest.mark.triton

NUM_EQUAL = 3


@pytest.fixture
def home(tmp_path, monkeypatch, engine_home) -> Path:
    """A home with the shared engine and an empty cache."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "engines").symlink_to(engine_home / "engines")
    (home / "models").symlink_to(engine_home / "models")
    monkeypatch.setenv("TRTB_HOME", str(home))
    return home


@pytest.fixture
def options(home, shared_server, tmp_path):
    """Return options of a run on the shared server."""
    stored = EngineStore(shared_server.home).resolve()

    def make(name: str, **fields: Any) -> RunOptions:
        values = {"endpoints": (shared_server.endpoint,), "cache": True, "default_max_tokens": 5, **fields}
        return RunOptions(
            tmp_path / "in.jsonl", tmp_path / f"{name}.jsonl", stored.path, stored.manifest, **values
        )

    return make


def file_of_every_kind(path: Path) -> int:
    """Write requests of every kind, equal ones among them, all with one answer; returns how many complete."""
    lines = [
        chat("greedy"),
        *(chat(f"equal-{n}", "Say ho.") for n in range(NUM_EQUAL)),
        chat("unbounded", max_tokens=None),
        chat("seeded", temperature=1, seed=4, n=2),
        chat("logged", logprobs=True),
        chat("stopped", stop=[" "]),
        completion("text", prompt=["one", "two"]),
        completion("ids", prompt=[5, 6, 7]),
        chat("long", "word " * 9000),
        chat("again"),
    ]
    request_lines.write(path, lines)
    return len(lines) - 1


def sums(made: RunReport, output: Path) -> tuple[int, int, int]:
    """Return how many the engine, an equal request and the cache have answered, by ledger and report."""
    rows = [row for row in ledger.read_rows(RunPaths(output).ledger) if row.status == "completed"]
    found = [sum(row.reused_from == kind for row in rows) for kind in (None, "equal", "cache")]
    assert made.completed == sum(found)
    assert [made.reused, made.cached] == found[1:]
    assert all((row.attempts == 0) is (row.reused_from is not None) for row in rows)
    return found[0], found[1], found[2]


@pytest.mark.parametrize("dedup", [True, False])
def test_a_second_run_writes_the_same_bytes_in_any_order_and_with_equal_requests(options, tmp_path, dedup):
    num_completed = file_of_every_kind(tmp_path / "in.jsonl")
    first = run_batch(options("first", dedup=dedup))
    num_equal = NUM_EQUAL if dedup else 0
    assert sums(first, tmp_path / "first.jsonl") == (num_completed - num_equal, num_equal, 0)
    assert first.cache
    assert (first.cache.hits, first.cache.misses) == (0, num_completed + 1)
    expected = (tmp_path / "first.jsonl").read_bytes()
    for again, order in itertools.product((True, False), ("prefix", "length")):
        name = f"{again}-{order}"
        made = run_batch(options(name, dedup=again, order=order))
        assert sums(made, tmp_path / f"{name}.jsonl") == (0, 0, num_completed)
        assert (tmp_path / f"{name}.jsonl").read_bytes() == expected
        assert made.cache
        assert (made.cache.hits, made.cache.misses, made.cache.stored) == (num_completed, 1, 0)


def test_lines_that_are_not_there_are_computed_and_the_rest_is_not(options, tmp_path):
    lines = [chat(f"c-{n}", f"Say {n}.") for n in range(12)]
    request_lines.write(tmp_path / "in.jsonl", lines[:5])
    run_batch(options("some"))
    lines.insert(3, chat("hot", temperature=1))
    request_lines.write(tmp_path / "in.jsonl", lines)
    made = run_batch(options("all"))
    assert sums(made, tmp_path / "all.jsonl") == (8, 0, 5)
    records = request_lines.read(tmp_path / "all.jsonl")
    assert [record["custom_id"] for record in records] == [line["custom_id"] for line in lines]
    assert len({record["id"] for record in records}) == len(lines)
    last = run_batch(options("last"))
    assert sums(last, tmp_path / "last.jsonl") == (1, 0, 12)


@pytest.mark.own_process
def test_an_interrupted_run_goes_on_with_what_the_cache_has_by_then(options, tmp_path):
    num_lines = 40
    lines = [chat(f"c-{n}", f"Count to {n % 35}.", max_tokens=20) for n in range(num_lines)]
    request_lines.write(tmp_path / "in.jsonl", lines)

    def stop(progress: Progress) -> None:
        if progress.phase == "running" and progress.num_completed >= 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterruptedError):
        run_batch(options("out", concurrency=2, grace_s=0.0), stop)
    partial = json.loads((tmp_path / "out.jsonl.run" / "report.json").read_bytes())
    assert 0 < partial["completed"] < num_lines
    run_batch(options("other"))  # another run fills the cache
    made = run_batch(options("out"))
    num_sent, num_equal, num_cached = sums(made, tmp_path / "out.jsonl")
    assert num_sent + num_equal + num_cached == num_lines
    assert num_cached == num_lines - partial["completed"]
    answers = [
        [record["response"]["body"]["choices"] for record in request_lines.read(tmp_path / f"{name}.jsonl")]
        for name in ("out", "other")
    ]
    assert answers[0] == answers[1]
    again = run_batch(options("again"))
    assert again.cached == num_lines


@pytest.mark.own_process
def test_a_signal_during_the_look_up_leaves_a_run_that_goes_on(options, tmp_path, monkeypatch):
    monkeypatch.setattr("trtb.runner.caching.cached_run.LINES_PER_LOOK_UP", 2)
    request_lines.write(tmp_path / "in.jsonl", [chat(f"c-{n}", f"Say {n}.") for n in range(8)])
    run_batch(options("first"))
    expected = (tmp_path / "first.jsonl").read_bytes()
    from trtb.runner.caching.result_cache import ResultCache

    look_up = ResultCache.look_up

    def interrupted(self: ResultCache, keys: list[bytes]) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return look_up(self, keys)

    with monkeypatch.context() as patched:
        patched.setattr(ResultCache, "look_up", interrupted)
        with pytest.raises(RunInterruptedError):
            run_batch(options("second"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(list(ledger.done_lines(RunPaths(tmp_path / "second.jsonl").ledger))) == 2
    made = run_batch(options("second", cache=False, order="input"))
    assert (made.completed, made.cached) == (8, 2)
    assert made.cache is None
    records = request_lines.read(tmp_path / "second.jsonl")
    assert [record["id"] for record in records] == [
        record["id"] for record in map(json.loads, expected.splitlines())
    ]


def test_a_cache_that_is_damaged_costs_a_warning_and_the_same_answers(options, home, tmp_path):
    file_of_every_kind(tmp_path / "in.jsonl")
    run_batch(options("first"))
    database = home / "cache" / FILE_NAME
    database.write_bytes(b"\xff" * database.stat().st_size)
    made = run_batch(options("second"))
    assert made.cached == 0
    assert any("damaged" in warning for warning in made.warnings)
    found = [request_lines.read(tmp_path / f"{name}.jsonl") for name in ("first", "second")]
    for record in itertools.chain(*found):
        body = record["response"]["body"]
        body.pop("created", None)  # of another run
        for choice in body.get("choices", ()):
            choice.pop("logprobs")  # the last bits of a sum may be others
    assert found[0] == found[1]


def test_what_failed_is_looked_up_again_by_retry(home, options, tmp_path):
    request_lines.write(
        tmp_path / "in.jsonl", [chat(f"c-{n}", f"Say {n}.", max_tokens=200) for n in range(3)]
    )
    made = run_batch(options("out", request_timeout_s=0.05, max_attempts=1))
    assert made.failed == 3
    run_batch(options("other"))
    done = commands.trtb(home, "retry", tmp_path / "out.jsonl", "--json")
    assert done.code == 0, done.stderr
    assert done.json["cached"] == 3


def test_two_runs_share_the_cache_at_once(options, home, tmp_path):
    request_lines.write(tmp_path / "in.jsonl", [chat(f"c-{n}", f"Say {n}.") for n in range(20)])
    other = options("other")
    command = ("run", tmp_path / "in.jsonl", "-o", other.output, "--cache", "--json")
    results: list[commands.Done] = []
    run = threading.Thread(
        target=lambda: results.append(
            commands.trtb(home, *command, "--endpoint", other.endpoints[0], "--default-max-tokens", 5)
        )
    )
    run.start()
    first = run_batch(options("first"))
    run.join()
    assert results[0].code == 0, results[0].stderr
    assert first.warnings == [w for w in first.warnings if "result cache" not in w]
    made = run_batch(options("last"))
    assert made.cached == 20


def test_the_second_run_of_a_file_starts_no_server_and_the_commands_tell_of_it(home, tmp_path):
    path = request_lines.write(tmp_path / "in.jsonl", [chat(f"c-{n}", f"Say {n}.") for n in range(6)])
    run = ("run", path, "--cache", "--json")
    first = commands.trtb(home, *run, "-o", tmp_path / "first.jsonl")
    second = commands.trtb(home, *run, "-o", tmp_path / "second.jsonl")
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "second.jsonl").read_bytes()
    assert (tmp_path / "first.jsonl.run" / "server.log").exists()
    assert not (tmp_path / "second.jsonl.run" / "server.log").exists()
    assert (first.json["cached"], second.json["cached"]) == (0, 6)
    stats = commands.trtb(home, "cache", "stats", "--json").json
    assert (stats["num_entries"], len(stats["engines"])) == (6, 1)
    copy = tmp_path / "copy.gz"
    assert commands.trtb(home, "cache", "export", copy, "--json").json["num_entries"] == 6
    assert commands.trtb(home, "cache", "clear", "--json").json["num_removed"] == 6
    taken = commands.trtb(home, "cache", "import", copy, "--json").json
    assert (taken["num_taken"], taken["num_known"], taken["num_refused"]) == (6, 0, 0)
    third = commands.trtb(home, *run, "-o", tmp_path / "third.jsonl")
    assert (tmp_path / "third.jsonl").read_bytes() == (tmp_path / "first.jsonl").read_bytes(), third.stderr


def test_a_file_that_the_cache_and_its_own_faults_answer_needs_no_server(options, tmp_path):
    path = request_lines.write(tmp_path / "in.jsonl", [chat(f"c-{n}", f"Say {n}.") for n in (1, 2, 1)])
    with path.open("a") as file:
        file.write('{"custom_id": "broken"\n')
    first = run_batch(options("first", on_invalid="fail"))
    assert (first.completed, first.failed) == (2, 2)
    # nobody listens there
    second = run_batch(
        options("second", on_invalid="fail", endpoints=("127.0.0.1:9",), server_wait_s=0.1, start_timeout_s=1)
    )
    assert (second.cached, second.failed, second.max_in_flight) == (2, 2, 0)
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "second.jsonl").read_bytes()
    assert (tmp_path / "first.retry.jsonl").read_bytes() == (tmp_path / "second.retry.jsonl").read_bytes()
