"""The key of a cached result: all that decides an answer, and nothing else."""

from __future__ import annotations

import dataclasses
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from fakes.manifest import fake_manifest
from fakes.runs import fake_options
from fakes.work import item

from trtb.runner.answer import Answer, Choice
from trtb.runner.caching.cache_key import DECIDE_NOTHING, KeyMaker
from trtb.runner.guiding.guides import Guide
from trtb.runner.options import RunOptions
from trtb.runner.request import ChatRequest, CompletionRequest, SamplingParams
from trtb.runner.request_digest import digest
from trtb.runner.source import Prompt

VERSIONS = {"trtb": "1", "transformers": "5", "python": "3.11.7"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=5)
CHAT = ChatRequest(1, "a", "tiny", [{"role": "user", "content": "Hi"}], GREEDY)
TEXT = CompletionRequest(1, "a", "tiny", ("Hi",), GREEDY)


def key(request: Any = CHAT, versions: dict[str, str] = VERSIONS, **options: Any) -> bytes | None:
    return KeyMaker(fake_options(Path("/r"), **options), versions).key(request)


def changed(**sampling: Any) -> ChatRequest:
    return replace(CHAT, sampling=replace(GREEDY, **sampling))


def test_a_request_has_one_key_whoever_asks():
    assert key() == key(replace(CHAT, line=9, custom_id="z", model="alias"))
    assert len(key() or b"") == 32


@pytest.mark.parametrize(
    "other",
    [
        TEXT,
        replace(CHAT, messages=[{"role": "system", "content": "Hi"}]),
        replace(CHAT, messages=[*CHAT.messages, *CHAT.messages]),
        replace(CHAT, tools=[{"type": "function"}]),
        replace(CHAT, template_kwargs={"enable_thinking": False}),
        replace(CHAT, continue_final_message=True),
        replace(TEXT, prompts=([1, 2],)),
        replace(TEXT, prompts=("Hi", "Hi")),
        *(
            changed(**{name: value})
            for name, value in {
                "max_tokens": 6, "top_p": 0.5, "top_k": 3, "min_tokens": 1, "presence_penalty": 0.5,
                "frequency_penalty": 0.5, "repetition_penalty": 1.5, "seed": 7, "stop": ("x",), "n": 2,
                "log_probs": True, "guide": Guide("json", "{}"),
            }.items()
        ),
    ],
)  # fmt: skip
def test_what_decides_an_answer_makes_another_key(other):
    assert key(other) not in (None, key())


def test_every_parameter_of_sampling_is_tried_above():
    assert {field.name for field in fields(SamplingParams)} == {
        "max_tokens", "temperature", "top_p", "top_k", "min_tokens", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "seed", "stop", "n", "log_probs", "guide",
    }  # fmt: skip


def test_an_answer_that_may_be_another_each_time_has_no_key():
    assert key(changed(temperature=1.0)) is None
    assert key(changed(temperature=1.0, seed=3)) is not None
    assert key(changed(temperature=1.0, seed=3)) != key(changed(temperature=1.0, seed=4))


def test_a_request_without_a_bound_has_the_runs_own():
    unbounded = changed(max_tokens=None)
    assert key(unbounded, default_max_tokens=5) != key(unbounded, default_max_tokens=6)
    assert key(CHAT) == key(CHAT, default_max_tokens=9)


def test_a_bound_that_is_named_makes_another_key_than_the_runs_own():
    """Where there is no room for it, a request that names its bound fails, and another one is cut."""
    assert key(changed(max_tokens=None), default_max_tokens=5) != key(CHAT)


ONE, OTHER = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda value: {"tools": [{"type": "function", "function": value}]},
        lambda value: {"template_kwargs": value},
        lambda value: {"messages": [{"role": "user", "content": "Hi", "more": value}]},
    ],
)
def test_what_a_template_renders_in_another_order_is_another_request(change):
    one, other = (replace(CHAT, **change(value)) for value in (ONE, OTHER))
    assert key(one) != key(other)
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    "options",
    [
        {"deterministic": True},
        {"trtllm_parameters": ("enable_kv_cache_reuse=false",)},
        {"endpoints": ()},
        {"num_kv_blocks": 3},
    ],
    ids=str,
)
def test_an_option_that_decides_makes_another_key(options):
    assert key(**options) != key()


def test_another_engine_or_version_makes_another_key():
    other = dataclasses.replace(fake_options(Path("/r")), manifest=fake_manifest(engine_id="f" * 64))
    assert KeyMaker(other, VERSIONS).key(CHAT) != key()
    assert key(versions={**VERSIONS, "trtb": "2"}) != key()
    assert key(versions={**VERSIONS, "python": "3.12.1"}) == key()


def test_what_decides_nothing_makes_no_other_key():
    assert key(concurrency=3, order="length", limit=4, cache=True, cache_ttl_hours=2.0, dedup=True) == key()
    assert key(endpoints=("a:1", "b:2"), request_timeout_s=3.0, model_aliases=("x",)) == key()
    # a pool that holds the engine's longest request changes no answer
    assert key(num_kv_blocks=10**6) == key()


def test_every_option_is_sorted_by_whether_it_decides():
    """A new option is part of the key until its name is in DECIDE_NOTHING: name it here or there."""
    names = {field.name for field in fields(RunOptions)}
    assert names - DECIDE_NOTHING == {"deterministic", "kv_cache_dtype", "trtllm_parameters"}
    assert names >= DECIDE_NOTHING


@pytest.mark.parametrize(
    ("asked", "sent", "reason", "lasts"),
    [
        (4, 4, "length", True),
        (None, 1024, "length", True),
        (None, 100, "length", False),  # the engine's room has cut it
        (None, 100, "stop", True),
    ],
)
def test_an_answer_that_the_room_has_cut_is_not_kept(asked, sent, reason, lasts):
    maker = KeyMaker(fake_options(Path("/r")), VERSIONS)
    sent_item = dataclasses.replace(item(1, temperature=0, max_tokens=sent), prompts=[Prompt([1], sent)])
    sent_item.sampling = SamplingParams(temperature=0, max_tokens=asked)
    assert maker.is_lasting(sent_item, Answer([Choice("x", reason, 3)], 1, 1)) is lasts
