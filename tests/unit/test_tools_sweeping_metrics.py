"""What is kept of what a server did along a point."""

from __future__ import annotations

from trtb.build.probe.gpu_use import GpuUse
from trtb.runner.reporting.server_watch import ServerUse
from trtb.tools.sweeping.metrics import Looks, watching


def test_the_most_is_kept_of_what_fills_up_and_the_mean_of_what_is_busy():
    looks = Looks()
    looks.span_s = 2.0
    looks.seen = [
        ServerUse(cpu_s=1.0, rss_bytes=10, active=1, waiting=0, blocks_used=5, blocks=20),
        ServerUse(cpu_s=2.0, rss_bytes=30, active=4, waiting=2, blocks_used=10, blocks=20),
        ServerUse(),
    ]
    assert looks.figures() == {
        "engine_active_max": 4,
        "engine_waiting_max": 2,
        "kv_use_max": 0.5,
        "server_rss_bytes_max": 30,
        "server_cpu_cores": 1.5,
    }


def test_gpus_are_told_where_they_tell():
    looks = Looks()
    looks.seen = [
        ServerUse(gpus=(GpuUse(0, busy_fraction=0.5, memory_used_bytes=5, memory_total_bytes=9), GpuUse(1))),
        ServerUse(gpus=(GpuUse(0, busy_fraction=1.0, memory_used_bytes=7, power_w=300.0), GpuUse(1))),
    ]
    assert looks.figures() == {
        "gpu_busy_mean": 0.75,
        "gpu_memory_used_bytes_max": 7,
        "gpu_power_w_mean": 300.0,
    }


def test_a_server_of_others_is_not_looked_at():
    with watching([], has_gpus=False) as looks:
        pass
    assert (looks.seen, looks.figures()) == ([], {})
