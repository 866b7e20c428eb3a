"""The diagnosis: what a session of a run spent its time waiting for, with the evidence and what to change.

Each sample is put down to one cause, so the shares add up to no more than the whole. What the samples do
not show is not claimed: such time is unknown, and said to be. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from trtb.runner.reporting import evidence
from trtb.runner.reporting.evidence import SessionFacts
from trtb.runner.reporting.samples import Sample
from trtb.runner.wording import counted

Kind = Literal[
    "start_up", "planning", "client", "tokenisation", "concurrency", "kv_pool", "engine", "long_tail"
]

CLIENT_BUSY: Final = 0.8  # of one core: what is left is the turn of the event loop itself
PREPARE_SHARE: Final = 0.5  # of the client's work: more than all the rest
FULL: Final = 0.9  # of the places: one that has just become free is not taken in the same instant
KV_FULL: Final = 0.75  # of the blocks: what a large request leaves over is less than itself
KV_ROOM: Final = 0.5  # of the blocks are held at the most: twice the requests would fit
TAIL: Final = 0.5  # of the most in flight: half of the engine's batch is gone
SERVER_IDLE: Final = 0.2  # of one processor, or of a GPU's time: nothing is being computed
MIN_SHARE: Final = 0.1  # a smaller cause is not worth a change
MIN_START_SHARE: Final = 0.2  # of start-up and planning: they end by themselves
MIN_OBSERVED_S: Final = 2.0  # two samples: one alone may be a warm-up


class Bottleneck(BaseModel):
    """One cause, and what it cost."""

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: Kind
    share: float  # of the session's time, from its start to its last answer
    evidence: list[str]
    setting: str  # what to change


class Diagnosis(BaseModel):
    """What a session waited for."""

    model_config = ConfigDict(strict=True, extra="forbid")

    bottlenecks: list[Bottleneck]  # the greatest share first
    unknown_share: float
    unknown_why: str | None  # null where little is unknown
    tail_s: float  # the time in which few of the last requests were still in flight
    num_samples: int


@dataclass(frozen=True, slots=True)
class _Unclear:
    """A sample that shows no cause, and why."""

    why: str


def diagnose(facts: SessionFacts, samples: Sequence[Sample]) -> Diagnosis:
    """Return what a session's time went into.

    Args:
        facts: What the session knows of itself.
        samples: Those of this session alone.
    """
    observed_s = sum(sample.span_s for sample in samples)
    whole_s = max(facts.startup_s + facts.planning_s + max(facts.running_s, observed_s), 1e-9)
    groups: dict[Kind, list[Sample]] = {}
    unclear: dict[str, float] = {}
    if observed_s < MIN_OBSERVED_S:
        unclear[f"its requests took {facts.running_s:.1f} s: too short to be watched"] = facts.running_s
    else:
        peak = max(sample.max_in_flight for sample in samples)
        for sample in samples:
            cause = _cause(sample, facts, peak)
            if isinstance(cause, _Unclear):
                unclear[cause.why] = unclear.get(cause.why, 0.0) + sample.span_s
            else:
                groups.setdefault(cause, []).append(sample)
    found = [
        *_before_the_first_request(facts, whole_s),
        *(_bottleneck(kind, group, facts, whole_s) for kind, group in groups.items()),
    ]
    found = [each for each in found if each.share >= MIN_SHARE]
    unknown_share = sum(unclear.values()) / whole_s
    is_unknown = unknown_share >= MIN_SHARE
    return Diagnosis(
        bottlenecks=sorted(found, key=lambda each: -each.share),
        unknown_share=round(unknown_share, 4),
        unknown_why=max(unclear, key=lambda why: unclear[why]) if is_unknown else None,
        tail_s=round(sum(sample.span_s for sample in groups.get("long_tail", ())), 3),
        num_samples=len(samples),
    )


def describe(diagnosis: Diagnosis) -> list[str]:
    """Return the diagnosis as people read it, the greatest cause first, each with what to change."""
    lines = []
    for each in diagnosis.bottlenecks[:2]:
        lines.append(f"{NAMES[each.kind]}, {each.share:.0%} of the time: {'; '.join(each.evidence)}")
        lines.append(f"  to change: {each.setting}")
    if diagnosis.unknown_why and not any(
        each.share > diagnosis.unknown_share for each in diagnosis.bottlenecks
    ):
        lines.append(f"cannot tell for {diagnosis.unknown_share:.0%} of the time: {diagnosis.unknown_why}")
    return lines


NAMES: Final[dict[Kind, str]] = {
    "start_up": "start-up",
    "planning": "planning",
    "client": "the client",
    "tokenisation": "tokenisation",
    "concurrency": "concurrency",
    "kv_pool": "the KV pool",
    "engine": "the engine",
    "long_tail": "a long tail",
}


def _cause(sample: Sample, facts: SessionFacts, peak: int) -> Kind | _Unclear:
    """Return what a sample's time went into."""
    if sample.loop_busy_s >= CLIENT_BUSY * sample.span_s:
        is_preparing = sample.prepare_s >= PREPARE_SHARE * sample.loop_busy_s
        return "tokenisation" if is_preparing else "client"
    if sample.drained_fraction >= 0.5:
        return "long_tail" if sample.in_flight < TAIL * peak else _engine(sample, facts)
    if sample.in_flight < FULL * sample.bound:
        if sample.waiting < 0.5:
            return _Unclear("places stood free, and the client was neither busy nor at the end of the file")
        if evidence.held_fraction(sample, 0.0) >= KV_FULL or evidence.is_short_of_blocks(sample):
            return "kv_pool"
        return _Unclear(
            "requests waited with places and KV blocks free: for a shared prefix, the canary, or a server "
            "that was down"
        )
    if sample.bound < FULL * facts.concurrency and facts.num_full:
        return "kv_pool"  # the server has said so itself
    cause = _engine(sample, facts)
    has_room = evidence.held_fraction(sample, 0.0) <= KV_ROOM and sample.bound < facts.enough_in_flight
    return "concurrency" if cause == "engine" and has_room else cause


def _engine(sample: Sample, facts: SessionFacts) -> Kind | _Unclear:
    """Return the engine as the cause, unless it is seen to do nothing."""
    gpu_busy = [gpu.busy_fraction for gpu in sample.gpus if gpu.busy_fraction is not None]
    server_busy = None if sample.server_cpu_s is None else sample.server_cpu_s / sample.span_s
    told = [busy for busy in (*gpu_busy, server_busy) if busy is not None]
    is_seen = bool(gpu_busy) if facts.is_gpu else bool(told)  # of a GPU engine, idle processors say nothing
    if is_seen and max(told) < SERVER_IDLE:
        return _Unclear("requests were in flight, and neither the client nor the server computed")
    return "engine"


def _before_the_first_request(facts: SessionFacts, whole_s: float) -> list[Bottleneck]:
    """Return what came before the first request, where it was much."""
    parts: list[tuple[Kind, float, str, str]] = [
        (
            *("start_up", facts.startup_s, "until the server had generated a token"),
            "start the server once (trtb serve) and name it with --endpoint, or run larger files",
        ),
        (
            *("planning", facts.planning_s, "of looking at the file, to choose its order"),
            "--order input --no-dedup",
        ),
    ]
    running = f"{facts.running_s:.1f} s of answering"
    return [
        Bottleneck(
            kind=kind,
            share=round(seconds / whole_s, 4),
            evidence=[f"{seconds:.1f} s {what}", running],
            setting=setting,
        )
        for kind, seconds, what, setting in parts
        if seconds >= MIN_START_SHARE * whole_s
    ]


def _bottleneck(kind: Kind, group: list[Sample], facts: SessionFacts, whole_s: float) -> Bottleneck:
    seconds = sum(sample.span_s for sample in group)
    told = {
        "client": evidence.of_client,
        "tokenisation": evidence.of_client,
        "concurrency": evidence.of_concurrency,
        "kv_pool": evidence.of_kv_pool,
        "engine": evidence.of_engine,
        "long_tail": evidence.of_tail,
    }[kind](group, facts)
    return Bottleneck(
        kind=kind,
        share=round(seconds / whole_s, 4),
        evidence=[*told, f"seen for {seconds:.0f} s, in {counted(len(group), 'sample')}"],
        setting=evidence.setting_of(kind, group, facts),
    )
