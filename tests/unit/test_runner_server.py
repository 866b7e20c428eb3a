"""The server as a process: what is wrong with it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from trtb.build.child_process import DIE_WITH_PARENT
from trtb.runner import server
from trtb.runner.errors import ServerStartError
from trtb.runner.launching import launch_embedded
from trtb.runner.server import ServerConfig, TritonServer


@pytest.fixture
def idle(tmp_path) -> TritonServer:
    return TritonServer(ServerConfig(tmp_path / "repository", tmp_path / "work", tmp_path / "server.log"))


def test_a_server_that_was_not_started_says_so_and_can_be_stopped(idle):
    assert idle.pid is None
    assert idle.fault() == "the server is not running"
    asyncio.run(idle.stop())
    assert idle.log_tail() == ""


def test_a_start_error_shows_the_end_of_the_log(idle, tmp_path):
    (tmp_path / "server.log").write_text("".join(f"line {number}\n" for number in range(100)))
    error = idle.start_error("it ended")
    assert isinstance(error, ServerStartError)
    assert "line 99" in error.message
    assert "line 84" not in error.message
    assert str(tmp_path / "server.log") in error.hint


def test_only_what_dead_clients_left_in_shared_memory_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SHM", tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    kept = [f"trtb_{os.getpid()}_abc_0", "trtb_x_abc", "other_1_2", f"trtb_{os.getppid()}_abc"]
    for name in [*kept, f"trtb_{gone.pid}_abc_region"]:
        (tmp_path / name).touch()
    server.sweep_shared_memory()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_free_port_can_be_bound():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", server.free_port("127.0.0.1")))


def test_a_process_started_so_dies_with_its_parent():
    parent_code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[1], str(os.getpid()),"
        " '/bin/sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, DIE_WITH_PARENT],
        stdout=subprocess.PIPE,
        text=True,
        cwd=sys.prefix,
    )
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs([child], timeout=10)
    assert (gone, alive) == ([child], [])


def test_a_missing_part_of_the_server_is_named(monkeypatch):
    monkeypatch.setattr(launch_embedded.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ServerStartError, match="nvidia-pytriton is not installed"):
        launch_embedded.find_install()
