"""Samples of a run that nobody ran."""

from __future__ import annotations

from typing import Any

from trtb.runner.reporting.evidence import SessionFacts
from trtb.runner.reporting.samples import Sample


def sample(**fields: Any) -> Sample:
    """Return a second in which all places are taken, half of the pool is held, and the server computes."""
    values: dict[str, Any] = {
        "session": 1,
        "time_s": 1000.0,
        "span_s": 1.0,
        "in_flight": 64.0,
        "max_in_flight": 64,
        "bound": 64.0,
        "waiting": 0.0,
        "drained_fraction": 0.0,
        "client_cpu_s": 0.1,
        "loop_busy_s": 0.1,
        "prepare_s": 0.02,
        "loop_lag_s": 0.001,
        "max_loop_lag_s": 0.01,
        "blocks_held": 500.0,
        "max_blocks_held": 500,
        "num_blocks": 1000,
        "server_cpu_s": 1.9,
        "server_rss_bytes": 1 << 30,
        **fields,
    }
    return Sample(**values)


def facts(**fields: Any) -> SessionFacts:
    """Return those of a session of ten seconds on a CPU engine of its own."""
    values: dict[str, Any] = {
        "startup_s": 0.0,
        "planning_s": 0.0,
        "running_s": 10.0,
        "concurrency": 64,
        "max_batch_size": 128,
        "is_gpu": False,
        "is_own_server": True,
        "num_servers": 1,
        "num_cpus": 2,
        "order": "input",
        **fields,
    }
    return SessionFacts(**values)
