"""What is sent for a prompt: its id, and what it says of the blocks that others will want."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.work import item
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.admission import Demand
from trtb.runner.engine_request import OWN_PRIORITY, SHARED_PRIORITY, RequestTerms, engine_request
from trtb.runner.scheduling.schedule_prefixes import Copy
from trtb.runner.scheduling.schedule_task import Candidate, Task, leader_of
from trtb.runner.source import Prompt
from trtb.runner.transport import Retention

TERMS = RequestTerms("run", end_id=2, pad_id=0, stop_words=((9,),), tokens_per_block=32, is_retaining=True)


def task(num_tokens: int, segments: list[int], *, leads: int = -1) -> Task:
    """Return a line whose prompt begins with prefixes of so many blocks each."""
    line = replace(item(7), prompts=[Prompt(list(range(num_tokens)), 4)], num_prompt_tokens=num_tokens)
    copies = [Copy(node, 0, num_blocks) for node, num_blocks in enumerate(segments)]
    sent = leader_of(line, num_tokens) if leads >= 0 else line
    return Task(sent, Candidate(Demand(1)), 0, None, leads=leads, copies=copies)


def request(sent: Task, terms: RequestTerms = TERMS):
    return engine_request(terms, sent, 0, lambda stop: tuple((len(each),) for each in stop))


def test_an_attempt_is_told_from_every_other_and_never_by_the_custom_id():
    line, leader = task(10, []), task(64, [2], leads=3)
    line.item.attempts = 2
    assert request(line).request_id == "run-7-0-2"
    assert request(leader).request_id == "run-7-prefix3-0"


def test_stop_strings_come_after_the_ids_that_end_every_answer():
    line = task(10, [])
    line.item.sampling = replace(line.item.sampling, stop=("ab", "c"))
    sent = request(line)
    assert (sent.stop_words, sent.streaming) == (((9,), (2,), (1,)), True)


def test_what_others_have_outlives_what_only_the_line_has():
    assert request(task(100, [1, 2])).retention == Retention(
        ((0, 96, SHARED_PRIORITY), (96, 100, OWN_PRIORITY)), OWN_PRIORITY
    )
    assert OWN_PRIORITY < 35 < SHARED_PRIORITY  # of what nobody speaks of


def test_a_leader_is_shared_as_a_whole():
    assert request(task(64, [2], leads=0)).retention == Retention(((0, 64, SHARED_PRIORITY),), OWN_PRIORITY)


@pytest.mark.parametrize(
    ("sent", "terms"),
    [(task(100, []), TERMS), (task(100, [1]), replace(TERMS, is_retaining=False))],
)
def test_nothing_is_said_of_what_shares_nothing_or_to_an_engine_that_cannot_be_told(sent, terms):
    assert request(sent, terms).retention is None


@given(st.integers(1, 500), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_ranges_are_as_tensorrt_llm_demands_them(num_tokens, segments):
    """In order, none of them empty, none over another; here they cover the prompt, too."""
    told = request(task(num_tokens, segments)).retention
    assert told is not None
    ends = [0]
    for start, end, priority in told.ranges:
        assert start == ends[-1]
        assert end > start
        assert 0 <= priority <= 100
        ends.append(end)
    assert ends[-1] == num_tokens
    assert 0 <= told.decode_priority <= 100
