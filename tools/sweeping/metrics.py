"""What the server and the machine did while a point was measured: looked at twice a second, in a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from trtb.build.probe.gpu_use import GpuWatch
from trtb.runner.reporting.server_watch import ServerUse, ServerWatch
from trtb.runner.server import TritonServer

PERIOD_S: Final = 0.5
END_TIMEOUT_S: Final = 5.0


class Looks:
    """What was seen while a run went on; complete when the `watching` that gave it has ended."""

    def __init__(self) -> None:
        self.seen: list[ServerUse] = []
        self.span_s = 0.0  # that they cover

    def figures(self) -> dict[str, float]:
        """Return the largest or mean of what was seen; what nobody told is not there."""
        seen = self.seen
        found = {
            "engine_active_max": _max([use.active for use in seen]),
            "engine_waiting_max": _max([use.waiting for use in seen]),
            "kv_use_max": _max([_share(use.blocks_used, use.blocks) for use in seen]),
            "server_rss_bytes_max": _max([use.rss_bytes for use in seen]),
            "server_cpu_cores": self._cores(),
            "gpu_busy_mean": _mean([gpu.busy_fraction for use in seen for gpu in use.gpus]),
            "gpu_memory_used_bytes_max": _max([gpu.memory_used_bytes for use in seen for gpu in use.gpus]),
            "gpu_power_w_mean": _mean([gpu.power_w for use in seen for gpu in use.gpus]),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _cores(self) -> float | None:
        """Return how many cores the server kept busy, in the mean."""
        told = _told([use.cpu_s for use in self.seen])
        return sum(told) / self.span_s if told and self.span_s else None


@contextlib.contextmanager
def watching(servers: Sequence[TritonServer], *, has_gpus: bool) -> Iterator[Looks]:
    """Look at our own servers until the block ends; where there are none, nothing is seen."""
    looks = Looks()
    if not servers:
        yield looks
        return
    watch = ServerWatch(servers, GpuWatch() if has_gpus else None)
    is_over = threading.Event()

    def look() -> None:
        watch.look()  # what was used before is not the run's
        started = time.monotonic()
        while not is_over.wait(PERIOD_S):
            looks.seen.append(watch.look())
            looks.span_s = time.monotonic() - started

    thread = threading.Thread(target=look, name="trtb-sweep-metrics", daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        is_over.set()
        thread.join(END_TIMEOUT_S)
        if thread.is_alive():  # it waits for a driver that hangs
            watch.interrupt()
            thread.join(END_TIMEOUT_S)
        if not thread.is_alive():
            watch.close()


def _share(used: float | None, whole: int | None) -> float | None:
    return None if used is None or not whole else used / whole


def _told(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _max(values: Sequence[float | None]) -> float | None:
    return max(_told(values), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    told = _told(values)
    return sum(told) / len(told) if told else None
