"""What the samples of a reuse check show, and what is sent to take them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from fakes.manifest import fake_manifest
from hypothesis import given
from hypothesis import strategies as st

from trtb.build.manifest import EngineManifest
from trtb.runner.errors import ConnectionLostError, ServerError
from trtb.runner.reuse_check import (
    CASES,
    MAX_ROUNDS,
    MIN_ROUNDS,
    ReuseCase,
    ReuseFindings,
    Sample,
    check_reuse,
    word_ids,
)
from trtb.runner.transport import Chunk, EngineRequest

BASE = fake_manifest()
MANIFEST: EngineManifest = BASE.model_copy(
    update={
        "limits": BASE.limits.model_copy(
            update={"max_seq_len": 2048, "max_num_tokens": 512, "tokens_per_block": 16}
        ),
        "model": BASE.model.model_copy(update={"vocab_size": 4000}),
    }
)
WIDTH = 16


def case(ratios: Sequence[float], counts: Sequence[int | None] | None = None) -> ReuseCase:
    counts = [None] * len(ratios) if counts is None else counts
    samples = [
        Sample(1_000_000, round(ratio * 1e6), count) for ratio, count in zip(ratios, counts, strict=True)
    ]
    return ReuseCase("same request", 10, samples)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.05] * 5, "reused"),
        ([1.0] * 5, "computed again"),
        ([0.05] * 4, "cannot tell"),  # too few
        ([0.05, 0.06, 0.07, 3.0, 0.05], "reused"),  # one that something else slowed
        ([1.1, 0.9, 1.0, 0.2, 1.0], "computed again"),
        ([0.65] * 7, "cannot tell"),
        ([0.1, 1.0, 0.1, 1.0, 0.1], "cannot tell"),  # they contradict each other
    ],
)
def test_times_decide_only_where_they_are_clear(ratios, verdict):
    found = case(ratios)
    assert found.verdict == verdict
    assert found.method == "derived from prefill times"


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [([10, 10, 11], "reused"), ([0, 0, 0], "computed again"), ([3, 4, 3], "cannot tell")],
)
def test_counted_blocks_decide_whatever_the_times_say(counts, verdict):
    found = case([1.0] * 3, counts)
    assert found.verdict == verdict
    assert found.method == "engine counters"


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=11))
def test_what_takes_as_long_is_never_called_reused_and_the_other_way_round(ratios):
    verdict = case(ratios).verdict
    if min(ratios) > 0.5:
        assert verdict != "reused"
    if max(ratios) < 0.8:
        assert verdict != "computed again"


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.1, 0.1, 0.1), "works"),
        ((0.1, 0.1, 1.0), "works"),  # TensorRT-LLM lends blocks only at a request's end
        ((1.0, 0.1, 0.1), "does not work"),
        ((0.1, 1.0, 0.1), "does not work"),
        ((0.1, 0.6, 0.1), "cannot tell"),
    ],
)
def test_the_verdict_is_that_of_requests_that_have_ended(ratios, verdict):
    assert ReuseFindings(tuple(case([ratio] * 5) for ratio in ratios), 5, 100).verdict == verdict


def test_word_ids_are_no_special_ones():
    special = {MANIFEST.tokens.bos, MANIFEST.tokens.pad, *MANIFEST.tokens.eos}
    assert not special & set(word_ids(MANIFEST))
    assert len(word_ids(MANIFEST)) == 997


@dataclass
class FakeEngine:
    """Takes a microsecond for each token beyond the whole blocks that it has seen."""

    is_reusing: bool = True
    is_counting: bool = False
    seen: set[tuple[int, ...]] = field(default_factory=set)
    sent: list[EngineRequest] = field(default_factory=list)

    def open_stream(self) -> FakeStream:
        return FakeStream(self)

    def known_blocks(self, ids: Sequence[int]) -> int:
        count = 0
        while (count + 1) * WIDTH < len(ids) and tuple(ids[: (count + 1) * WIDTH]) in self.seen:
            count += 1
        return count if self.is_reusing else 0


class FakeStream:
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._chunks: list[Chunk] = []

    async def send(self, request: EngineRequest) -> None:
        engine = self._engine
        engine.sent.append(request)
        known = engine.known_blocks(request.input_ids)
        for end in range(WIDTH, len(request.input_ids) + 1, WIDTH):
            engine.seen.add(tuple(request.input_ids[:end]))
        took_ns = 1000 * (len(request.input_ids) - known * WIDTH)
        last = Chunk([1], True, 0, (), 1, 1 + took_ns, known if engine.is_counting else None)
        self._chunks = [last] if request.max_tokens == 1 else [replace(last, is_final=False)]

    async def receive(self) -> Chunk:
        if not self._chunks:
            raise ConnectionLostError("nothing more")
        return self._chunks.pop(0)

    def cancel(self) -> None:
        self._chunks = []


@pytest.mark.parametrize("is_counting", [False, True])
@pytest.mark.parametrize("is_reusing", [False, True])
def test_a_check_sees_what_an_engine_does(is_reusing, is_counting):
    engine = FakeEngine(is_reusing, is_counting)
    found = asyncio.run(check_reuse(engine, MANIFEST, 400))
    assert found.verdict == ("works" if is_reusing else "does not work")
    assert {each.verdict for each in found.cases} == {"reused" if is_reusing else "computed again"}
    assert found.num_rounds == MIN_ROUNDS
    assert [each.name for each in found.cases] == list(CASES)
    assert len({request.request_id for request in engine.sent}) == len(engine.sent)


def test_a_check_that_sees_nothing_clear_ends(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(ReuseCase, "verdict", property(lambda _: "cannot tell"))
    assert asyncio.run(check_reuse(engine, MANIFEST, 400)).num_rounds == MAX_ROUNDS


def test_two_checks_of_one_server_know_nothing_of_each_other():
    engine = FakeEngine()
    for _ in range(2):
        assert asyncio.run(check_reuse(engine, MANIFEST, None)).verdict == "works"


@pytest.mark.parametrize("pool", [13, 40, 100, 4000])
def test_what_is_sent_fits_the_pool(pool):
    engine = FakeEngine()
    asyncio.run(check_reuse(engine, MANIFEST, pool))
    largest = sorted(
        (-(-(len(request.input_ids) + request.max_tokens) // WIDTH) for request in engine.sent), reverse=True
    )
    alone = max(-(-len(request.input_ids) // WIDTH) for request in engine.sent)
    assert largest[0] + alone <= pool


def test_a_pool_that_is_too_small_is_refused():
    with pytest.raises(ServerError, match="room for prompts of 3 KV blocks; expected at least 4"):
        asyncio.run(check_reuse(FakeEngine(), MANIFEST, 12))
