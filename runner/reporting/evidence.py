"""The evidence of a diagnosis: figures with their units from the samples of one cause, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trtb.runner.reporting.samples import Sample
from trtb.runner.wording import counted

# Requests in flight from which an engine gains little by more. On two cores with AVX512, SmolLM2-135M in int8
# made 266, 331, 381, 571 and 613 tokens/s with 4, 8, 16, 32 and 64 (`trtb run --concurrency`). A data-centre
# GPU computes some 300 times while it reads a byte of its weights; far below that it waits for its memory.
ENOUGH_CPU: Final = 32
ENOUGH_GPU: Final = 128
WATCHED: Final = 0.9  # of the pool: what a suggestion fills, since requests differ


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a session knows of itself, beside its samples."""

    startup_s: float  # until the servers were ready
    planning_s: float
    running_s: float  # from the first request to the last answer
    concurrency: int
    max_batch_size: int  # of the engine
    is_gpu: bool
    is_own_server: bool
    num_servers: int
    num_cpus: float  # that this process, and servers of its own, may use
    order: Literal["prefix", "length", "input"]
    num_full: int = 0  # times a server refused a request for want of room

    @property
    def enough_in_flight(self) -> int:
        """Return from how many requests in flight on the engine gains little by more."""
        return min(self.max_batch_size, ENOUGH_GPU if self.is_gpu else ENOUGH_CPU)


def mean(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float | None:
    """Return the mean over the time of the samples that have the value; None where none has."""
    told = [(found, sample.span_s) for sample in samples if (found := value(sample)) is not None]
    spans_s = sum(span_s for _, span_s in told)
    return sum(found * span_s for found, span_s in told) / spans_s if spans_s else None


def held_fraction(sample: Sample, unknown: float) -> float:
    """Return the share of the KV pool that requests in flight are counted with."""
    if sample.blocks_held is None or not sample.num_blocks:
        return unknown
    return sample.blocks_held / sample.num_blocks


def is_short_of_blocks(sample: Sample) -> bool:
    """Say whether the pool has no room for one more request like those in flight."""
    if sample.blocks_held is None or not sample.num_blocks or not sample.in_flight:
        return False
    return sample.num_blocks - sample.blocks_held <= sample.blocks_held / sample.in_flight


def of_client(samples: Sequence[Sample], facts: SessionFacts) -> list[str]:
    """Return what shows that the client is at its limit."""
    busy = mean(samples, lambda each: each.loop_busy_s / each.span_s) or 0.0
    preparing = mean(samples, lambda each: each.prepare_s / each.span_s) or 0.0
    lag_s = mean(samples, lambda each: each.loop_lag_s) or 0.0
    told = [
        f"the client's thread busy for {busy:.0%} of the time",
        f"rendering and tokenising for {preparing:.0%}",
        f"events {lag_s * 1e3:.0f} ms late on average",
    ]
    return told + _server(samples, facts)


def of_concurrency(samples: Sequence[Sample], facts: SessionFacts) -> list[str]:
    """Return what shows that the engine has room for more requests than may be sent."""
    told = [_in_flight(samples), f"the engine takes up to {facts.max_batch_size}"]
    return told + _pool(samples) + _server(samples, facts)


def of_kv_pool(samples: Sequence[Sample], facts: SessionFacts) -> list[str]:
    """Return what shows that requests wait for KV blocks."""
    told = [_in_flight(samples), *_pool(samples)]
    if facts.num_full:
        times = "once" if facts.num_full == 1 else f"{facts.num_full} times"
        told.append(f"refused {times} by the server for want of room")
    return told


def of_engine(samples: Sequence[Sample], facts: SessionFacts) -> list[str]:
    """Return what shows that everything waits for the engine."""
    busy = mean(samples, lambda each: each.loop_busy_s / each.span_s) or 0.0
    return [_in_flight(samples), *_server(samples, facts), f"the client's thread busy for {busy:.0%}"]


def of_tail(samples: Sequence[Sample], _: SessionFacts) -> list[str]:
    """Return what shows that few requests were left."""
    most = max(sample.max_in_flight for sample in samples)
    return [f"{mean(samples, lambda each: each.in_flight):.1f} requests in flight, {most} at the most"]


def setting_of(kind: str, samples: Sequence[Sample], facts: SessionFacts) -> str:
    """Return what to change where this is the cause."""
    if kind == "tokenisation":
        return "send prompts as token ids (/v1/completions), or " + _SIDE_BY_SIDE
    if kind == "client":
        return _SIDE_BY_SIDE
    if kind == "long_tail":
        return "lower max_tokens of the longest answers" if facts.order == "length" else "--order length"
    if kind == "concurrency":
        return f"--concurrency {_better_concurrency(samples, facts)}"
    if kind == "kv_pool":
        return _more_blocks(samples, facts)
    return "a lower precision (trtb build --quant), more or faster devices; trtb sweep finds the best load"


_SIDE_BY_SIDE: Final = "split the file, and run its parts side by side on one server (trtb serve, --endpoint)"


def _better_concurrency(samples: Sequence[Sample], facts: SessionFacts) -> int:
    """Return how many requests the pool would take, within what the engine can do and gains by."""
    bound = mean(samples, lambda each: each.bound) or 1.0
    wanted = max(2 * round(bound), facts.enough_in_flight)
    held = mean(samples, lambda each: held_fraction(each, 0.0)) or 0.0
    if held:
        in_flight = mean(samples, lambda each: each.in_flight) or 1.0
        wanted = min(wanted, max(round(bound) + 1, int(in_flight / held * WATCHED)))
    return min(wanted, facts.max_batch_size)


def _more_blocks(samples: Sequence[Sample], facts: SessionFacts) -> str:
    less = "or lower max_tokens (--default-max-tokens where a request names none)"
    # of one server; a block of each stays free, and is not counted as one
    num_blocks = max((sample.num_blocks or 0 for sample in samples), default=0) // facts.num_servers
    in_flight = mean(samples, lambda each: each.in_flight) or 0.0
    wanted = f"{int(num_blocks * facts.concurrency / in_flight) + 1}" if num_blocks and in_flight else "N"
    if facts.is_gpu:
        more = "--trtllm-parameter kv_cache_free_gpu_mem_fraction=0.95"
    else:
        more = f"--num-kv-blocks {wanted}" + (f" (now {num_blocks + 1})" if num_blocks else "")
    return f"{more}{'' if facts.is_own_server else ' of trtb serve'}, {less}"


def _in_flight(samples: Sequence[Sample]) -> str:
    in_flight, bound = mean(samples, lambda each: each.in_flight), mean(samples, lambda each: each.bound)
    return f"{in_flight:.1f} of {bound:.0f} requests in flight"


def _pool(samples: Sequence[Sample]) -> list[str]:
    held = mean(samples, lambda each: each.blocks_held)
    num_blocks = max((sample.num_blocks or 0 for sample in samples), default=0)
    if held is None or not num_blocks:
        return []
    told = [f"{held:.0f} of {num_blocks} KV blocks held ({held / num_blocks:.0%})"]
    waiting = mean(samples, lambda each: each.waiting) or 0.0
    return [*told, "the next request waits for room"] if waiting >= 0.5 else told


def _server(samples: Sequence[Sample], facts: SessionFacts) -> list[str]:
    """Return how busy the servers and their GPUs were, as far as they are seen."""
    told = []
    cpus = mean(samples, lambda each: None if each.server_cpu_s is None else each.server_cpu_s / each.span_s)
    if cpus is not None:
        told.append(f"the server on {cpus:.1f} of {facts.num_cpus:g} processors")
    indexes = sorted({gpu.index for sample in samples for gpu in sample.gpus})
    for index in indexes:
        busy = mean(samples, lambda each, at=index: _gpu_busy(each, at))  # type: ignore[misc]
        if busy is not None:
            told.append(f"GPU {index} busy for {busy:.0%}")
    queued = mean(samples, lambda each: each.engine_waiting)
    if queued is not None and queued >= 1:
        told.append(f"{counted(round(queued), 'request')} waiting in the engine")
    return told


def _gpu_busy(sample: Sample, index: int) -> float | None:
    return next((gpu.busy_fraction for gpu in sample.gpus if gpu.index == index), None)
