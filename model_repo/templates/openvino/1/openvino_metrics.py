"""The model's own metrics; Triton's cover execute() only, which returns at once."""

from __future__ import annotations

import time

import triton_python_backend_utils as pb_utils
from openvino_engine import Engine

PERIOD_S = 0.2
TTFT_BUCKETS_S = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120]


class Metrics:
    """Gauges under TensorRT-LLM's names, so that one dashboard shows either backend, and counters."""

    def __init__(self) -> None:
        gauge, counter = pb_utils.MetricFamily.GAUGE, pb_utils.MetricFamily.COUNTER
        requests = _family("nv_trt_llm_request_metrics", "Requests in the engine by state", gauge)
        blocks = _family("nv_trt_llm_kv_cache_block_metrics", "KV blocks by state", gauge)
        done = _family("trtb_requests_total", "Requests that ended, by outcome", counter)
        tokens = _family("trtb_tokens_total", "Tokens of completed requests", counter)
        rebuilds = _family(
            "trtb_engine_rebuilds_total", "Pipelines built again after a failing step", counter
        )
        ttft = _family("trtb_ttft_seconds", "From arrival to first token", pb_utils.MetricFamily.HISTOGRAM)
        self._families = [requests, blocks, done, tokens, rebuilds, ttft]  # metrics die with their family
        self._requests = {
            kind: requests.Metric(labels={"request_type": kind}) for kind in ("active", "waiting", "max")
        }
        self._blocks = {
            kind: blocks.Metric(labels={"kv_cache_block_type": kind})
            for kind in ("used", "free", "max", "tokens_per")
        }
        self._counters = {
            name: done.Metric(labels={"outcome": name}) for name in ("completed", "failed", "cancelled")
        }
        self._counters["input_tokens"] = tokens.Metric(labels={"kind": "input"})
        self._counters["output_tokens"] = tokens.Metric(labels={"kind": "output"})
        self._counters["rebuilds"] = rebuilds.Metric(labels={})
        self._shown = dict.fromkeys(self._counters, 0)
        self._next = 0.0
        self._was_idle = False
        self.ttft = ttft.Metric(labels={}, buckets=TTFT_BUCKETS_S)

    def update(self, engine: Engine, num_blocks: int, tokens_per_block: int, max_batch_size: int) -> None:
        """Publish the engine's state, a few times a second: each figure is a message to the server."""
        now = time.monotonic()
        idle = engine.num_running == 0
        # a short request may come and go between two looks: its counts tell of it
        is_told = all(getattr(engine.counters, name) == shown for name, shown in self._shown.items())
        if (idle and self._was_idle and is_told) or (now < self._next and not idle):
            return
        self._next = now + PERIOD_S
        self._was_idle = idle
        self._requests["active"].set(engine.num_running)
        self._requests["waiting"].set(engine.num_waiting)
        self._requests["max"].set(max_batch_size)
        used = round(engine.cache_usage * num_blocks)
        self._blocks["used"].set(used)
        self._blocks["free"].set(num_blocks - used)
        self._blocks["max"].set(num_blocks)
        self._blocks["tokens_per"].set(tokens_per_block)
        for name, metric in self._counters.items():
            value = getattr(engine.counters, name)
            if value > self._shown[name]:
                metric.increment(value - self._shown[name])
                self._shown[name] = value


def _family(name: str, description: str, kind: object) -> object:
    return pb_utils.MetricFamily(name=name, description=description, kind=kind)
