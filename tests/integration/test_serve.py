"""`trtb serve`: it says where it is, keeps to loopback, comes back after a death, leaves nothing behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import commands
import psutil
import pytest
import request_lines
from request_lines import chat

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def told_by(process) -> dict[str, str]:
    lines = []
    while not (lines and lines[-1] == "}\n") and (line := process.stdout.readline()):
        lines.append(line)
    assert lines, process.stderr.read()
    return json.loads("".join(lines))


def descendants(process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_server_is_used_by_runs_restarted_after_a_death_and_ended_without_traces(engine_home, tmp_path):
    process = commands.start(
        engine_home, "serve", "--json", "--grpc-port", 0, "--metrics-port", 0, "--num-kv-blocks", 60
    )
    try:
        told = told_by(process)
        children = descendants(process)
        listening = {
            connection.laddr.ip
            for child in children
            for connection in child.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        path = request_lines.write(tmp_path / "in.jsonl", [chat("a", max_tokens=3), chat("b", max_tokens=3)])
        arguments = ("run", path, "--endpoint", told["endpoint"], "--json")
        first = commands.trtb(engine_home, *arguments, "-o", tmp_path / "first.jsonl")
        assert (first.code, first.json["engine_id"]) == (0, told["engine_id"]), first.stderr

        next(child for child in children if child.name().startswith("triton_python_b")).kill()
        commands.wait_until(
            lambda: any(
                child not in children and child.name() == "tritonserver" for child in descendants(process)
            ),
            60,
            "the server is started again",
        )
        again = commands.trtb(engine_home, *arguments, "-o", tmp_path / "second.jsonl")
        assert again.code == 0, again.stderr
        children += descendants(process)
    finally:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr
    assert "stopping" in stderr
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert not list(Path("/dev/shm").glob(f"trtb_{process.pid}_*"))
    assert not (engine_home / "cache" / "serve" / str(process.pid)).exists()


def test_a_port_that_is_taken_is_said_at_once_with_the_log(engine_home):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = commands.trtb(
            engine_home, "serve", "--grpc-port", port, "--metrics-port", 0, "--num-kv-blocks", 60
        )
    assert done.code == 6
    assert "did not start" in done.stderr
    assert "already in use" in done.stderr


def test_a_server_of_another_kind_is_refused_and_nothing_is_sent(engine_home, tmp_path):
    path = request_lines.write(tmp_path / "in.jsonl", [chat("a")])
    done = commands.trtb(
        engine_home,
        "run",
        path,
        "--endpoint",
        "127.0.0.1:1",
        "--server-wait",
        1,
        "-o",
        tmp_path / "out.jsonl",
        "--json",
    )
    assert done.code == 6
    assert done.json["error"]["code"] == "server_lost"
    assert not (tmp_path / "out.jsonl").exists()
