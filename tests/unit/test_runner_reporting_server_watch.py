"""What is seen of servers: their processes' work since the last look, and their metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import psutil
import pytest

from trtb.build.probe.gpu_use import GpuUse
from trtb.runner.reporting.server_watch import ServerUse, ServerWatch

METRICS = """# HELP nv_trt_llm_request_metrics Requests
nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 3
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 70
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 100
"""


class FakeMetrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), FakeMetrics) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.005,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/metrics"
        http.shutdown()
        thread.join()


@dataclass
class FakeTimes:
    user: float
    system: float = 0.0


@dataclass
class FakeProcess:
    pid: int
    cpu_s: float
    rss: int = 100
    is_gone: bool = False

    def oneshot(self) -> Any:
        import contextlib

        return contextlib.nullcontext()

    def cpu_times(self) -> FakeTimes:
        if self.is_gone:
            raise psutil.NoSuchProcess(self.pid)
        return FakeTimes(self.cpu_s)

    def memory_info(self) -> Any:
        return self


@dataclass
class FakeServer:
    found: list[FakeProcess] = field(default_factory=list)
    metrics_url: str = ""

    def processes(self) -> list[FakeProcess]:
        return self.found


def test_processor_time_is_that_since_the_last_look():
    one, two = FakeProcess(1, 100.0), FakeProcess(2, 50.0)
    watch = ServerWatch([FakeServer([one, two])])  # type: ignore[list-item]
    assert watch.look() == ServerUse(cpu_s=0.0, rss_bytes=200)
    one.cpu_s += 2.0
    two.cpu_s += 0.5
    assert watch.look().cpu_s == 2.5


def test_a_server_that_was_started_again_has_used_what_it_says():
    server = FakeServer([FakeProcess(1, 100.0)])
    watch = ServerWatch([server])  # type: ignore[list-item]
    watch.look()
    server.found = [FakeProcess(9, 3.0)]
    assert watch.look().cpu_s == 3.0


def test_without_processes_nothing_is_said():
    gone = FakeServer([FakeProcess(1, 1.0, is_gone=True)])
    assert ServerWatch([gone, FakeServer()]).look() == ServerUse()  # type: ignore[list-item]


def test_metrics_of_all_servers_are_added_up(url):
    watch = ServerWatch([FakeServer(metrics_url=url), FakeServer(metrics_url=url)])  # type: ignore[list-item]
    use = watch.look()
    assert (use.active, use.waiting, use.blocks_used, use.blocks) == (6.0, 10.0, 140.0, 200)


def test_a_server_that_does_not_answer_costs_its_metrics_alone():
    dead = FakeServer([FakeProcess(1, 1.0)], "http://127.0.0.1:1/metrics")
    assert ServerWatch([dead]).look() == ServerUse(cpu_s=0.0, rss_bytes=100)  # type: ignore[list-item]


def test_gpus_are_asked_of_their_own_process_and_let_go():
    class FakeGpus:
        is_closed = False

        def read(self) -> tuple[GpuUse, ...]:
            return (GpuUse(0, 0.5),)

        def close(self) -> None:
            self.is_closed = True

    gpus = FakeGpus()
    watch = ServerWatch([], gpus)  # type: ignore[arg-type]
    assert watch.look().gpus == (GpuUse(0, 0.5),)
    watch.close()
    assert gpus.is_closed
