"""`trtb sweep` with the real perf_analyzer: it ends by itself, says why a point is out, and is resumed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import commands
import psutil
import pytest
import request_lines
from fakes.sweep_server import sweep_server
from request_lines import chat

from trtb.build import toolchain

pytestmark = [pytest.mark.triton, pytest.mark.slow]

SHORT = ("--input-tokens", 12, "--output-tokens", 4)
LOOSE = ("--repeats", 2, "--max-spread", 9)  # this is no test of how quiet the machine is
MANY_BLOCKS = ("--num-kv-blocks", 200)


@pytest.fixture(scope="module")
def home(engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the engine and perf_analyzer; a recommendation is not written into the shared one."""
    root = tmp_path_factory.mktemp("sweep-home")
    kept = os.environ.get("TRTB_TEST_TOOLCHAINS")
    toolchain.install("perf_analyzer", Path(kept) if kept else root, lambda *_: None)
    if kept:
        (root / "toolchains").symlink_to(Path(kept) / "toolchains")
    (root / "models").symlink_to(engine_home / "models")
    for name in (engine_home / "engines").glob("[!.]*"):
        (root / "engines" / name.name).mkdir(parents=True)
        for part in name.iterdir():
            (root / "engines" / name.name / part.name).symlink_to(part)
    return root


@pytest.fixture
def noop(tmp_path: Path) -> Iterator[str]:
    """The endpoint of a server whose model misbehaves under load."""
    with sweep_server(tmp_path / "server") as server:
        yield server.endpoint


def point_of(folder: Path, name: str) -> dict:
    return json.loads((folder / "points" / f"{name}.json").read_text())


def running_in(folder: Path) -> list[str]:
    """Return the programs that work in a folder, or with a file of it."""
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and any(str(folder) in part for part in process.info["cmdline"] or [])
        and "trtb.tools.cli" not in " ".join(process.info["cmdline"])
    ]


def test_a_point_whose_requests_fail_is_out_and_the_sweep_ends_by_itself(home, noop, tmp_path):
    """At 64 one request in ten fails; perf_analyzer says so, and then waits for ever."""
    folder = tmp_path / "sweep"
    command = (
        *("sweep", "--endpoint", noop, "--concurrency", "1,2,4,64", *SHORT, *LOOSE),
        *("--request-count", 64, "-o", folder, "--json"),
    )
    done = commands.trtb(home, *command)
    assert done.code == 1, done.stderr
    points = {point["name"]: point for point in done.json["points"]}
    states = {name: point["state"] for name, point in points.items()}
    good = dict.fromkeys(("concurrency-1", "concurrency-2", "concurrency-4"), "ok")
    assert states == {**good, "concurrency-64": "failed"}, done.stderr
    assert "Failed to retrieve results" in points["concurrency-64"]["why"]
    assert "Failed to retrieve results" in (folder / "logs" / "concurrency-64.log").read_text()
    assert done.json["best"] in {"concurrency-2", "concurrency-4"}
    for point in points.values():
        sent = point["failed_command"] or point["runs"][0]["command"]
        assert sent[sent.index("--concurrency-range") + 1] == f"{point['value']:g}"
    run, _ = points["concurrency-4"]["runs"]
    assert (run["input_tokens_mean"], run["asked_tokens_mean"], run["output_tokens_mean"]) == (12, 4, 4)
    assert (run["num_requests"], run["perf_analyzer_version"]) == (64, "2.51.0")
    assert run["itl"]["p50_ms"] > 4  # the model takes 5 ms a token
    assert run["ttft"]["p50_ms"] > 4
    assert len((folder / "sweep.csv").read_text().splitlines()) == 5
    assert "concurrency" in (folder / "sweep.html").read_text()
    assert not (folder / "work").exists()
    assert running_in(folder) == []

    again = commands.trtb(home, *command, "--point-timeout", 5)
    assert (again.code, again.json["error"]["code"]) == (7, "run_mismatch")
    shown = commands.trtb(home, "sweep", "--show", folder, "--json")
    assert (shown.code, shown.json["best"]) == (0, done.json["best"])


def test_a_request_that_is_never_answered_ends_with_the_points_time(home, noop, tmp_path):
    done = commands.trtb(
        home, "sweep", "--endpoint", noop, "--input-tokens", "13,12", "--output-tokens", 4, *LOOSE,
        *("--concurrency", 2, "--request-count", 16, "--point-timeout", 5, "-o", tmp_path / "s", "--json"),
    )  # fmt: skip
    assert done.code == 1, done.stderr
    stalled, other = done.json["points"]
    assert (stalled["state"], "not over after 5 s" in stalled["why"]) == ("failed", True), stalled["why"]
    assert (other["state"], done.json["best"]) == ("ok", other["name"])


def test_a_killed_sweep_goes_on_where_it_was(home, tmp_path):
    folder = tmp_path / "sweep"
    command = (
        *("sweep", "--concurrency", "1,4", "--request-count", 8, *SHORT, *MANY_BLOCKS),
        *("--repeats", 2, "--max-spread", 9, "-o", folder, "--json"),
    )
    process = commands.start(home, *command)
    commands.wait_until((folder / "points" / "concurrency-1.json").is_file, 120, "the first point is there")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    commands.wait_until(lambda: running_in(folder) == [], 30, "nothing of it is left")
    first = (folder / "points" / "concurrency-1.json").stat()
    assert not (folder / "points" / "concurrency-4.json").exists()

    process = commands.start(home, *command)
    commands.wait_until(lambda: "perf_analyzer" in " ".join(running_in(folder)), 120, "it measures again")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted with 1 of 2 points measured" in json.loads(stdout)["error"]["message"]
    assert not (folder / "points" / "concurrency-4.json").exists()
    assert running_in(folder) == []

    done = commands.trtb(home, *command)
    assert done.code == 0, done.stderr
    assert "1 of 2 points are there already" in done.stderr
    again = (folder / "points" / "concurrency-1.json").stat()
    assert (again.st_mtime_ns, again.st_ino) == (first.st_mtime_ns, first.st_ino)
    assert [point["state"] for point in done.json["points"]] == ["ok", "ok"]
    assert done.json["points"][1]["median"]["metrics"]["server_rss_bytes_max"] > 1e8
    recommended = home / "engines" / "smollm2-135m-instruct-int8_wo" / "recommended-1.json"
    assert json.loads(recommended.read_text())["value"] in {1, 4}


def test_a_server_killed_in_a_point_is_started_again_for_the_next(home, tmp_path):
    folder = tmp_path / "sweep"
    process = commands.start(
        home, "sweep", "--concurrency", "2,1", "--request-count", 40, *SHORT, *MANY_BLOCKS, "--repeats", 1,
        *("-o", folder, "--json"),
    )  # fmt: skip
    commands.wait_until(lambda: "perf_analyzer" in " ".join(running_in(folder)), 120, "it measures")
    server = next(
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.name() == "tritonserver"
    )
    server.kill()
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 1, stderr
    killed, other = json.loads(stdout)["points"]
    assert (killed["state"], other["state"]) == ("failed", "ok"), stderr
    assert killed["why"] == "the server ended with status -9"
    assert "starting the server again" in stderr
    assert running_in(folder) == []


def test_the_users_own_requests_are_sent_as_a_run_sends_them(home, shared_server, tmp_path):
    lines = [
        chat(
            f"id-{i}",
            "word " * i,
            max_tokens=3 + i % 2,
            temperature=i % 2,
            **({"stop": ["x"]} if i % 3 else {}),
        )
        for i in range(6)
    ]
    path = request_lines.write(tmp_path / "in.jsonl", [*lines, {"custom_id": "bad"}])
    done = commands.trtb(
        home, "sweep", "--endpoint", shared_server.endpoint, "--request-rate", "0.9,4", "--input", path,
        *("--request-count", 6, "--warmup-request-count", 0, "--latency-limit", 60000, "--best", "goodput"),
        *("--repeats", 1, "-o", tmp_path / "sweep", "--json"),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    slow, fast = done.json["points"]
    assert (slow["mode"], slow["settings"]) == ("request_rate", {})
    assert slow["median"]["asked_tokens_mean"] == 3.5
    assert 0 < slow["median"]["output_tokens_mean"] <= 3.5
    assert slow["median"]["input_tokens_mean"] > 10
    assert slow["median"]["goodput_per_s"] == slow["median"]["requests_per_s"] < 1.2
    assert fast["median"]["requests_per_s"] > slow["median"]["requests_per_s"]
    assert done.json["best"] == fast["name"]


def test_settings_that_cannot_serve_are_points_that_failed(home, tmp_path):
    done = commands.trtb(
        home, "sweep", "--set", "num_kv_blocks=2,100", "--concurrency", 1, "--request-count", 2,
        *("--input-tokens", 200, "--output-tokens", 4, "--repeats", 1, "-o", tmp_path / "sweep", "--json"),
    )  # fmt: skip
    assert done.code == 1, done.stderr
    small, large = done.json["points"]
    assert (small["settings"]["num_kv_blocks"], small["state"]) == (2, "failed")
    assert small["why"]
    assert (large["settings"]["num_kv_blocks"], large["state"]) == (100, "ok"), large["why"]
    assert done.json["best"] == large["name"]


OLD = """#!/bin/sh
if [ "$1" = --version ]; then echo 'Perf Analyzer Version 2.42.0 (commit 1)'; exit 0; fi
echo ' --async (-a): x'; echo '--streaming --service-kind --input-data --max-threads --concurrency-range'
echo '--request-rate-range --request-distribution --measurement-request-count --profile-export-file'
exit 99
"""


def test_a_perf_analyzer_that_is_old_or_none_is_refused_before_anything_starts(home, tmp_path):
    old = tmp_path / "perf_analyzer"
    old.write_text(OLD)
    old.chmod(0o755)
    done = commands.trtb(home, "sweep", "--perf-analyzer", old, "-o", tmp_path / "sweep", "--json")
    assert (done.code, done.json["error"]["code"]) == (4, "machine_does_not_fit")
    assert "version 2.42.0 has no --request-count; expected" in done.json["error"]["message"]
    other = commands.trtb(home, "sweep", "--perf-analyzer", "/bin/true", "-o", tmp_path / "sweep", "--json")
    assert (other.code, "did not tell its version" in other.json["error"]["message"]) == (4, True)
    gone = commands.trtb(home, "sweep", "--perf-analyzer", tmp_path / "gone", "-o", tmp_path / "s", "--json")
    assert (gone.code, "cannot be started" in gone.json["error"]["message"]) == (4, True)
    empty = tmp_path / "home"
    empty.mkdir()
    (empty / "engines").symlink_to(home / "engines")
    missing = commands.trtb(empty, "sweep", "-o", tmp_path / "sweep", "--json")
    assert (missing.code, missing.json["error"]["code"]) == (5, "toolchain_missing")
    assert missing.json["error"]["hint"] == "trtb toolchain install perf_analyzer"
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--concurrency", "1", "--request-rate", "2"), "both given"),
        (("--concurrency", "1,x"), "expected whole numbers"),
        (("--input-tokens", "9000"), "was built for 8192"),
        (("--best", "latency"), "--latency-limit"),
        (("--set", "num_kv_blocks=2", "--endpoint", "127.0.0.1:1"), "--set: of a server of our own"),
        (("--set", "max_num_tokens=1"), "max_num_tokens"),
        (("--endpoint", "here"), "host:port"),
        (("--concurrency", "64", "--request-count", "8", "--warmup-request-count", "0"), "fewer than"),
        (("somewhere",), "without --show"),
        (("--show",), "no folder"),
        (("--set", "quant=zz"), "the openvino backend builds"),
        (("--set", "num_kv_blocks=9", "--num-kv-blocks", "8"), "both given"),
        (("--request-rate", "1.0000001,1.0000002"), "2 points of that name"),
        (("--html", "/proc/nope/x.html"), "/proc/nope/x.html"),
    ],
)  # fmt: skip
def test_options_that_contradict_are_refused(home, tmp_path, options, words):
    done = commands.trtb(
        home, "sweep", *options, *(("-o", tmp_path / "s") if "--show" not in options else ())
    )
    assert done.code == 2, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "s").exists()
