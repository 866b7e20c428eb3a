"""What a run's own servers use and have to do, as their processes and their metrics tell; blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from trtb.build.probe.gpu_use import GpuUse, GpuWatch
from trtb.runner.server import TritonServer
from trtb.runner.server_metrics import BLOCKS_GAUGE, REQUESTS_GAUGE, fetch_metrics, read_gauge


@dataclass(frozen=True, slots=True)
class ServerUse:
    """All servers together; None where nobody tells."""

    cpu_s: float | None = None  # since the last look
    rss_bytes: int | None = None  # what processes share is counted in each
    active: float | None = None  # requests
    waiting: float | None = None
    blocks_used: float | None = None
    blocks: int | None = None
    gpus: tuple[GpuUse, ...] = ()


class ServerWatch:
    """Looks at servers, from one thread at a time.

    Args:
        servers: Those of the run's own.
        gpus: The process that asks for the GPUs; None where the servers use none.
    """

    def __init__(self, servers: Sequence[TritonServer], gpus: GpuWatch | None = None) -> None:
        self._servers = servers
        self._gpus = gpus
        self._cpu_s: dict[int, float] = {}  # by process, at the last look

    def look(self) -> ServerUse:
        """Return what the servers use now; waits for their answers, for a bounded time."""
        cpu_s, rss_bytes = self._processes()
        text = "".join(fetch_metrics(server.metrics_url) for server in self._servers)
        blocks = read_gauge(text, *BLOCKS_GAUGE, "max")
        return ServerUse(
            cpu_s=cpu_s,
            rss_bytes=rss_bytes,
            active=read_gauge(text, *REQUESTS_GAUGE, "active"),
            waiting=read_gauge(text, *REQUESTS_GAUGE, "waiting"),
            blocks_used=read_gauge(text, *BLOCKS_GAUGE, "used"),
            blocks=None if blocks is None else int(blocks),
            gpus=() if self._gpus is None else self._gpus.read(),
        )

    def interrupt(self) -> None:
        """Let a `look` that waits for a driver return."""
        if self._gpus is not None:
            self._gpus.interrupt()

    def close(self) -> None:
        """End what looks; no `look` is under way."""
        if self._gpus is not None:
            self._gpus.close()

    def _processes(self) -> tuple[float | None, int | None]:
        """Return the processor seconds since the last look, and the memory; None without processes."""
        seen: dict[int, float] = {}
        rss_bytes = 0
        for server in self._servers:
            for process in server.processes():
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    seen[process.pid] = times.user + times.system
                    rss_bytes += process.memory_info().rss
        if not seen:
            return None, None
        # one that was started again began at zero
        cpu_s = sum(now - self._cpu_s.get(pid, 0.0 if self._cpu_s else now) for pid, now in seen.items())
        self._cpu_s = seen
        return max(0.0, cpu_s), rss_bytes
