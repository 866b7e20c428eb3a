"""The observation of one session of a run: its times, its samples, and the diagnosis that they lead to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from trtb.build.probe.cgroups import cpu_quota
from trtb.build.probe.gpu_use import GpuWatch
from trtb.runner.endpoint import Endpoint
from trtb.runner.options import RunOptions
from trtb.runner.reporting.diagnosis import Diagnosis, diagnose
from trtb.runner.reporting.evidence import SessionFacts
from trtb.runner.reporting.sampler import Load, Sampler
from trtb.runner.reporting.server_watch import ServerWatch
from trtb.runner.scheduling.schedule_feed import Feed
from trtb.runner.scheduling.schedule_planner import Planner
from trtb.runner.source import Source
from trtb.runner.workers import Workers


class Observation:
    """Begins with the session; `begin` comes before `run`, `finish` after it, `diagnose` last.

    Args:
        options: The run's.
        folder: The run's; the samples go there.
        session: Which start of the run this is, from 1.
    """

    def __init__(self, options: RunOptions, folder: Path, session: int) -> None:
        self._options = options
        self._folder = folder
        self._session = session
        self._started = time.monotonic()
        self._startup_s = 0.0
        self._num_servers = 1
        self.sampler: Sampler | None = None

    @property
    def fault(self) -> str | None:
        """Return why the samples are not all on disk; None where they are."""
        return None if self.sampler is None else self.sampler.fault

    def servers_up(self) -> None:
        """Note that the servers are ready."""
        self._startup_s = time.monotonic() - self._started

    def begin(self, workers: Workers, feed: Feed, endpoints: Sequence[Endpoint], source: Source) -> None:
        """Make the sampler of what is about to run."""
        self._num_servers = len(endpoints)
        own = [endpoint.server for endpoint in endpoints if endpoint.server is not None]
        watch = ServerWatch(own, GpuWatch() if self._is_gpu else None) if own else None
        self.sampler = Sampler(
            self._folder,
            self._session,
            load=lambda: _load(workers, feed, self._options.concurrency),
            prepare_ns=lambda: source.prepare_ns,
            watch=watch,
        )

    async def run(self) -> None:
        """Sample until cancelled; `finish` then takes the last sample."""
        assert self.sampler
        await self.sampler.run()

    async def finish(self) -> None:
        """Take the last sample, and close what is open."""
        assert self.sampler
        await self.sampler.finish()

    def diagnose(self, planner: Planner, feed: Feed, running_s: float) -> Diagnosis:
        """Return what the session's time went into."""
        facts = SessionFacts(
            startup_s=self._startup_s,
            planning_s=planner.duration_s,
            running_s=running_s,
            concurrency=self._options.concurrency,
            max_batch_size=self._options.manifest.limits.max_batch_size,
            is_gpu=self._is_gpu,
            is_own_server=not self._options.endpoints,
            num_servers=self._num_servers,
            num_cpus=_num_cpus(),
            order=planner.choice.order,
            num_full=feed.admission.num_full,
        )
        return diagnose(facts, [] if self.sampler is None else self.sampler.samples)

    @property
    def _is_gpu(self) -> bool:
        return self._options.manifest.backend == "tensorrt_llm"


def _load(workers: Workers, feed: Feed, concurrency: int) -> Load:
    admission = feed.admission
    servers = range(admission.num_servers)
    is_known = None not in admission.capacities
    places = sum(admission.num_in_flight(each) + admission.num_free_places(each) for each in servers)
    return Load(
        in_flight=workers.num_in_flight,
        bound=min(concurrency, places),
        waiting=feed.num_waiting,
        is_drained=feed.is_drained,
        blocks_held=sum(map(admission.num_held_blocks, servers)) if is_known else None,
        num_blocks=sum(each or 0 for each in admission.capacities) if is_known else None,
    )


def _num_cpus() -> float:
    """Return the processors that this process may use, which its servers share."""
    usable = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return usable if quota is None else min(usable, quota)
