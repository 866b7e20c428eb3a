"""The result cache for any requests and any history: no wrong answer, within its capacity, oldest out."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

from fakes.cached import entry, key
from fakes.runs import fake_options
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trtb.runner.caching.cache_budget import Budget, pages_of
from trtb.runner.caching.cache_database import CacheDatabase
from trtb.runner.caching.cache_entry import Entry, checksum_of, decode
from trtb.runner.caching.cache_key import KeyMaker
from trtb.runner.caching.cache_writer import WriteFigures, split, store
from trtb.runner.request import ChatRequest, CompletionRequest, Request, SamplingParams

CAPACITY_BYTES = 1_000_000
MAKER = KeyMaker(fake_options(Path("/r")), {"trtb": "1"})

texts = st.text(alphabet='ab",[]{}\\\n\0é', max_size=4)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([None, 1, 1024]),
    temperature=st.sampled_from([0.0, 0.5]),
    seed=st.sampled_from([None, 0, 1]),
    stop=st.lists(texts, max_size=2).map(tuple),
    n=st.integers(1, 2),
    log_probs=st.booleans(),
)
messages = st.builds(
    lambda role, text, names: {name: {"role": role, "content": text}[name] for name in names},
    st.sampled_from(["user", "system"]),
    texts,
    st.permutations(["role", "content"]),
)
chats = st.builds(
    ChatRequest,
    st.just(1),
    st.just("a"),
    st.just("tiny"),
    st.lists(messages, max_size=2),
    samplings,
    continue_final_message=st.booleans(),
)
prompts = st.lists(st.one_of(texts, st.lists(st.integers(0, 3), max_size=3)), max_size=2).map(tuple)
requests = st.one_of(
    chats, st.builds(CompletionRequest, st.just(1), st.just("a"), st.just("tiny"), prompts, samplings)
)


@given(one=requests, other=requests)
def test_two_requests_meet_only_where_all_that_decides_is_equal(one: Request, other: Request) -> None:
    keys = MAKER.key(one), MAKER.key(other)
    if None not in keys:
        assert (keys[0] == keys[1]) is (repr(one) == repr(other))  # == takes keys in any order for equal


@given(position=st.integers(0), bit=st.integers(0, 7), number=st.integers(0, 3), length=st.integers(0, 2000))
def test_no_flipped_bit_of_an_entry_goes_unseen(position: int, bit: int, number: int, length: int) -> None:
    sound = entry(number, text_bytes=length)
    fields = [sound.key, sound.value, sound.checksum]
    flipped = bytearray(b"".join(fields))
    flipped[position % len(flipped)] ^= 1 << bit
    ends = [0, len(sound.key), len(sound.key) + len(sound.value), len(flipped)]
    parts = [bytes(flipped[start:end]) for start, end in itertools.pairwise(ends)]
    damaged = replace(sound, key=parts[0], value=parts[1], checksum=parts[2])
    assert sound.is_sound
    assert not damaged.is_sound
    decode(damaged.value)  # raises nothing, whatever is in it


@given(sizes=st.lists(st.integers(0, 200_000), max_size=30), capacity=st.integers(1_000_000, 20_000_000))
def test_parts_hold_every_entry_that_can_be_stored_once_and_fit_a_transaction(
    sizes: list[int], capacity: int
) -> None:
    budget = Budget(capacity)
    entries = [Entry(key(i), "e", bytes(size), b"", 0, 0) for i, size in enumerate(sizes)]
    figures = WriteFigures()
    parts = list(split(entries, budget, figures))
    assert all(part and pages_of(part) <= budget.pages_per_write for part in parts)
    kept = [each for part in parts for each in part]
    assert len(kept) + figures.num_not_stored == len(entries)
    assert kept == [each for each in entries if each in kept]
    assert budget.rows_per_write >= 1


SIZES = st.sampled_from([1, 5_000, 36_000])  # bytes; some twenty of the largest fill it


class CacheMachine(RuleBasedStateMachine):
    """Two connections store, use and remove; a plain dict says what may be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        self.databases = [CacheDatabase(path, CAPACITY_BYTES) for _ in range(2)]
        self.time = 0
        self.used: dict[bytes, int] = {}  # of what was stored and not removed
        self.values: dict[bytes, bytes] = {}

    def teardown(self) -> None:
        for database in self.databases:
            database.close()
        self.folder.cleanup()

    @rule(who=st.integers(0, 1), numbers=st.lists(st.integers(0, 60), min_size=8, max_size=12), size=SIZES)
    def put(self, who: int, numbers: list[int], size: int) -> None:
        self.time += 1
        entries = []
        for number in dict.fromkeys(numbers):
            value = bytes([number, self.time % 256]) * (size // 2 + 1)
            checksum = checksum_of(key(number), self.time, value)
            entries.append(Entry(key(number), "e" * 64, value, checksum, self.time, self.time))
        figures = WriteFigures()
        store(self.databases[who], entries, figures)
        assert figures.num_not_stored == 0
        for each in entries:
            self.used[each.key] = self.time
            self.values[each.key] = each.value
        self.forget_evicted()

    @rule(who=st.integers(0, 1), numbers=st.lists(st.integers(0, 60), max_size=6))
    def use(self, who: int, numbers: list[int]) -> None:
        self.time += 1
        keys = [key(number) for number in numbers]
        self.databases[who].touch(keys, self.time)
        self.used |= {each: self.time for each in keys if each in self.used}

    @rule(who=st.integers(0, 1), number=st.integers(0, 60))
    def remove(self, who: int, number: int) -> None:
        self.databases[who].remove_keys([key(number)])
        self.used.pop(key(number), None)

    @precondition(lambda self: self.used)
    @rule(who=st.integers(0, 1), age=st.integers(4, 10))
    def clear(self, who: int, age: int) -> None:
        before_s = self.time - age
        self.databases[who].remove_where(engine_id=None, used_before_s=before_s)
        self.used = {each: used for each, used in self.used.items() if used >= before_s}

    @rule(who=st.integers(0, 1))
    def shrink(self, who: int) -> None:
        self.databases[who].shrink()

    def forget_evicted(self) -> None:
        """Check that what went was used before all that stayed."""
        there = set(self.databases[0].find(list(self.used)))
        gone = set(self.used) - there
        if gone and there:
            assert max(self.used[each] for each in gone) <= min(self.used[each] for each in there)
        self.used = {each: used for each, used in self.used.items() if each in there}

    @invariant()
    def holds_what_it_should(self) -> None:
        found = self.databases[1].find([key(number) for number in range(61)])
        assert set(found) == set(self.used)
        assert all(each.is_sound and each.value == self.values[name] for name, each in found.items())
        assert {name: each.used_s for name, each in found.items()} == self.used

    @invariant()
    def is_within_its_capacity(self) -> None:
        assert self.databases[0].file.size_bytes <= CAPACITY_BYTES


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
