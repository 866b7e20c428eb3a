"""perf_analyzer: its command, and what its end means."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtb.build.child_process import ProcessEnd
from trtb.build.errors import HardwareError
from trtb.tools.sweeping import perf_analyzer
from trtb.tools.sweeping.perf_analyzer import Load, PerfAnalyzer, command_of, failure_of, probe

ANALYZER = PerfAnalyzer(Path("/bin/perf_analyzer"), "2.51.0", {})


def ended(status: int, *lines: str) -> ProcessEnd:
    return ProcessEnd(status=status, tail=lines, peak_rss_bytes=0, duration_s=1.0)


def test_a_run_at_a_concurrency_counts_its_requests():
    load = Load("127.0.0.1:8001", "concurrency", 16.0, 80, Path("/w/input.json"))
    command = command_of(ANALYZER, load, Path("/w/export.json"))
    assert command[0] == "/bin/perf_analyzer"
    assert command[command.index("--concurrency-range") + 1] == "16"
    assert command[command.index("--request-count") + 1] == "80"
    assert command[command.index("--profile-export-file") + 1] == "/w/export.json"
    assert {"--async", "--streaming"} <= set(command)


def test_a_rate_is_even_and_has_both_ends():
    """One end alone, below 1, begins a range for perf_analyzer; its Poisson has one fixed seed."""
    load = Load("h:1", "request_rate", 0.5, 16, Path("/w/input.json"))
    command = command_of(ANALYZER, load, Path("/w/export.json"))
    assert command[command.index("--request-rate-range") + 1] == "0.5:0.5"
    assert command[command.index("--request-distribution") + 1] == "constant"


def test_a_run_that_ended_with_an_export_is_no_failure():
    end = ended(0, "p99 latency: 1 usec")
    assert failure_of(end, timeout_s=9, is_late=False, has_export=True) is None
    assert failure_of(end, timeout_s=9, is_late=True, has_export=True) is None


@pytest.mark.parametrize(
    ("end", "is_late", "kind", "words"),
    [
        (ended(2, "Failed to obtain stable measurement within 3 windows"), False, "unstable", "3 windows"),
        (ended(99, "Thread [1] had error: bad thing"), False, "request_error", "bad thing"),
        (ended(99, "error: ... failed to connect; Connection refused"), False, "connection_lost", "refused"),
        (
            ended(99, "Error: no such option", "Usage: pa", "will exit with error"),
            False,
            "request_error",
            "option",
        ),
        (
            ended(-15, "Failed to retrieve results from inference request."),
            False,
            "request_error",
            "for ever",
        ),
        (ended(-9), False, "killed", "SIGKILL"),
        (ended(-15), True, "timeout", "not over after 9 s"),
        (ended(-15, "Thread [0] had error: x"), True, "timeout", "had error: x"),
        (ended(0, "all well"), False, "no_export", "no export"),
    ],
)
def test_every_other_end_has_its_reason(end: ProcessEnd, is_late: bool, kind: str, words: str):
    failure = failure_of(end, timeout_s=9, is_late=is_late, has_export=False)
    assert failure is not None
    assert (failure.kind, words in failure.why) == (kind, True), failure
    assert "will exit with error" not in failure.why


def talking(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> list[int]:
    """Let a perf_analyzer say lines until it is ended; returns how many it said at each start."""
    said: list[int] = []

    def run(_command: list[str], *, on_line, is_done, **_options: object) -> ProcessEnd:
        said.append(0)
        for line in lines:
            if is_done():
                break
            on_line(line)
            said[-1] += 1
        return ended(0, *lines[-3:])

    monkeypatch.setattr(perf_analyzer, "run_program", run)
    return said


def test_a_program_that_is_named_from_here_is_found_from_the_folder_of_the_sweep(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    talking(monkeypatch, ["Perf Analyzer Version 2.51.0", *perf_analyzer._OPTIONS])
    assert probe(Path("pa.sh"), {}).program == tmp_path / "pa.sh"


def test_one_that_talks_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(perf_analyzer, "MAX_PROBE_LINES", 10)
    said = talking(monkeypatch, ["y"] * 1000)
    with pytest.raises(HardwareError, match="did not tell its version"):
        probe(Path("/bin/yes"), {})
    assert said == [10]
