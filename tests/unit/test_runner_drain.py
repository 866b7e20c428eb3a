"""A server that drains is waited for as long as it has work, and not for what it never lets go."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trtb.runner.launching import drain
from trtb.runner.launching.drain import wait_drained

METRIC = 'nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="{}",version="1"}} {}\n'


class FakeMetrics(BaseHTTPRequestHandler):
    texts: list[str]  # one for each question; the last stays

    def do_GET(self) -> None:
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def state(active: int, waiting: int) -> str:
    others = METRIC.format("max", 128) + METRIC.format("scheduled", 7)
    return METRIC.format("active", active) + METRIC.format("waiting", waiting) + others


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "POLL_S", 0.001)
    monkeypatch.setattr(drain, "ASK_PERIOD_S", 0.0)
    monkeypatch.setattr(drain, "IDLE_GRACE_S", 0.0)


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), FakeMetrics) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/metrics"
        http.shutdown()
        thread.join()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def wait(process: subprocess.Popen[bytes], url: str, timeout_s: float) -> None:
    asyncio.run(wait_drained(process, url, timeout_s))


def test_an_idle_server_that_does_not_end_is_given_up(server, process) -> None:
    FakeMetrics.texts = [state(3, 0), state(0, 2), state(0, 0)]
    wait(process, server, 60)
    assert FakeMetrics.texts == [state(0, 0)], "it was given up while it had work"
    assert process.poll() is None


@pytest.mark.parametrize("text", [state(1, 0), state(0, 1), "", "nothing about requests\n"])
def test_a_server_with_work_or_without_a_word_has_all_its_time(server, process, text, monkeypatch) -> None:
    FakeMetrics.texts = [text]
    times = iter([0.0, 1.0, 2.0, 99.0])
    monkeypatch.setattr(drain, "monotonic", lambda: next(times))
    wait(process, server, 10)
    assert next(times, None) is None, "it was given up before its time"


def test_work_that_comes_back_begins_the_wait_anew(server, process, monkeypatch) -> None:
    monkeypatch.setattr(drain, "IDLE_GRACE_S", 5.0)
    FakeMetrics.texts = [state(0, 0), state(1, 0), state(0, 0)]
    now = iter([0.0, 1.0, 7.0, 8.0, 12.0, 13.0])  # idle at 1, busy at 7, idle from 8
    monkeypatch.setattr(drain, "monotonic", lambda: next(now))
    wait(process, server, 100)
    assert next(now, None) is None


def test_a_server_that_ends_is_waited_for_no_longer(process) -> None:
    process.kill()
    process.wait()
    wait(process, "http://127.0.0.1:1/metrics", 60)
