"""Kill everything, at random moments: nothing is lost, nothing is there twice, nothing stays behind.

Each test has a server of its own, which the run starts.
"""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import commands
import psutil
import pytest
import request_lines
from request_lines import chat

pytestmark = [pytest.mark.triton, pytest.mark.slow]

NUM_REQUESTS = 120
CONCURRENCY = 8


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    rng = random.Random(5)
    lines = [
        chat(f"id-{i}", f"{i} {rng.random()}", max_tokens=rng.randint(2, 6)) for i in range(NUM_REQUESTS)
    ]
    return request_lines.write(tmp_path / "in.jsonl", lines)


def num_rows(output: Path) -> int:
    """Return how many rows the run's ledger holds, as another process sees it."""
    path = output.with_name(output.name + ".run") / "ledger.db"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM results").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet
        return 0


def attempts(output: Path) -> int:
    path = output.with_name(output.name + ".run") / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT sum(attempts) FROM results").fetchone()[0]


def leftovers(folder: Path) -> list[str]:
    """Return the server processes that work in a folder."""
    return [
        " ".join(process.info["cmdline"][:2])
        for process in psutil.process_iter(["name", "cmdline", "status"])
        if process.info["name"].startswith(("tritonserver", "triton_python_b"))
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and str(folder) in " ".join(process.info["cmdline"] or [])
    ]


def child(process, name: str) -> psutil.Process:
    children = psutil.Process(process.pid).children(recursive=True)
    return next(each for each in children if each.name().startswith(name))


def check_complete(requests: Path, output: Path) -> None:
    wanted = [line["custom_id"] for line in request_lines.read(requests)]
    records = request_lines.read(output)
    assert [record["custom_id"] for record in records] == wanted
    assert all(record["error"] is None for record in records)


def test_a_runner_killed_three_times_is_resumed_to_the_whole_output(engine_home, requests, tmp_path):
    output, followed = tmp_path / "out.jsonl", tmp_path / "followed.jsonl"
    command = ("run", requests, "-o", output, "--concurrency", CONCURRENCY, "--follow", followed, "--json")
    rng = random.Random()
    print("moments:", moments := sorted(rng.sample(range(1, NUM_REQUESTS - 20), 3)))
    for moment in moments:
        process = commands.start(engine_home, *command)
        commands.wait_until(lambda: num_rows(output) >= moment or process.poll() is not None, 120, "rows")  # noqa: B023
        process.kill()
        process.communicate()
    rows_before = num_rows(output)
    commands.wait_until(lambda: not leftovers(tmp_path), 10, "the server of a killed run ends")
    done = commands.trtb(engine_home, *command)
    assert done.code == 0, done.stderr
    check_complete(requests, output)
    assert done.json["resumed"] == rows_before
    assert done.json["completed"] == NUM_REQUESTS
    assert attempts(output) == NUM_REQUESTS  # each row tells of its own session: nothing was sent in vain
    ids = [record["custom_id"] for record in request_lines.read(followed)]
    assert len(ids) == len(set(ids)) == NUM_REQUESTS
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("name", ["tritonserver", "triton_python_b"])
def test_a_server_killed_in_mid_run_is_started_again(engine_home, requests, tmp_path, name):
    output = tmp_path / "out.jsonl"
    process = commands.start(
        engine_home, "run", requests, "-o", output, "--concurrency", CONCURRENCY, "--json"
    )
    commands.wait_until(lambda: num_rows(output) >= 10 or process.poll() is not None, 120, "rows")
    child(process, name).kill()
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    done = commands.Done(process.returncode, stdout, stderr).json
    assert done["server_restarts"] == 1
    check_complete(requests, output)
    assert NUM_REQUESTS <= attempts(output) <= NUM_REQUESTS + 2 * CONCURRENCY
    assert not leftovers(tmp_path)


def test_one_interrupt_drains_and_the_same_command_goes_on(engine_home, requests, tmp_path):
    output = tmp_path / "out.jsonl"
    command = ("run", requests, "-o", output, "--concurrency", CONCURRENCY, "--json")
    process = commands.start(engine_home, *command)
    commands.wait_until(lambda: num_rows(output) >= 10, 120, "rows")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert '"interrupted"' in stdout
    assert not output.exists()
    assert not leftovers(tmp_path)
    kept = num_rows(output)
    assert 10 <= kept < NUM_REQUESTS
    done = commands.trtb(engine_home, *command)
    assert done.code == 0, done.stderr
    assert done.json["resumed"] == kept
    check_complete(requests, output)


def test_a_second_interrupt_gives_up_what_is_in_flight(engine_home, tmp_path):
    lines = [chat(f"id-{i}", f"{i}: tell a long story.", max_tokens=3000, min_tokens=3000) for i in range(4)]
    requests = request_lines.write(tmp_path / "in.jsonl", lines)
    output = tmp_path / "out.jsonl"
    log = tmp_path / "out.jsonl.run" / "run.log"
    process = commands.start(engine_home, "run", requests, "-o", output, "--grace", 100)
    commands.wait_until(lambda: log.exists() and "running" in log.read_text(), 120, "the run")
    process.send_signal(signal.SIGTERM)
    commands.wait_until(lambda: "stopping" in log.read_text(), 10, "the signal is heard")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=45)  # a third of the grace period
    assert process.returncode == 130
    assert num_rows(output) == 0
    assert not leftovers(tmp_path)


def test_a_server_of_others_that_goes_away_ends_the_run_with_all_that_was_done(engine_home, tmp_path):
    lines = [chat(f"id-{i}", f"{i}: tell a story.", max_tokens=40, min_tokens=40) for i in range(60)]
    requests = request_lines.write(tmp_path / "in.jsonl", lines)
    output = tmp_path / "out.jsonl"
    serve = ("serve", "--json", "--grpc-port", 0, "--metrics-port", 0, "--num-kv-blocks", 200)
    server = commands.start(engine_home, *serve)
    endpoint = _endpoint_of(server)
    command = ("run", requests, "-o", output, "--concurrency", 4, "--server-wait", 3, "--json")
    process = commands.start(engine_home, *command, "--endpoint", endpoint)
    commands.wait_until(lambda: num_rows(output) >= 2, 120, "rows")
    server.kill()
    server.communicate()
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 6
    assert '"server_lost"' in stdout
    kept = num_rows(output)
    assert 2 <= kept < 60
    done = commands.trtb(engine_home, *command)  # now with a server of its own
    assert done.code == 0, done.stderr
    assert done.json["resumed"] == kept
    check_complete(requests, output)


def _endpoint_of(server) -> str:
    for line in server.stdout:
        if '"endpoint"' in line:
            return line.split('"')[3]
    raise AssertionError(server.stderr.read())
