"""The pool of a server that tells it only in its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trtb.runner import server_metrics
from trtb.runner.server_metrics import fetch_metrics, wait_for_pool


def told(num_blocks: int) -> str:
    return (
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="max",model="m",version="1"}} {num_blocks}\n'
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answer each look with the next of some texts, and for good with the last; returns the rest of them."""

    def give(*texts: str) -> list[str]:
        left = list(texts)
        monkeypatch.setattr(
            server_metrics, "fetch_metrics", lambda _: left.pop(0) if len(left) > 1 else left[0]
        )
        monkeypatch.setattr(server_metrics, "_POLL_S", 0)
        return left

    return give


def test_a_pool_is_waited_for_until_the_first_step_has_told_it(answers):
    left = answers("", told(0), told(812))
    assert asyncio.run(wait_for_pool("http://127.0.0.1:1/metrics")) == 812
    assert len(left) == 1


@pytest.mark.parametrize("text", ["", told(0), "nv_trt_llm_kv_cache_block_metrics 7\n"])
def test_a_server_that_never_tells_is_not_waited_for_for_long(answers, text):
    answers(text)
    assert asyncio.run(wait_for_pool("http://127.0.0.1:1/metrics", patience_s=0)) is None


def test_a_server_that_is_not_there_tells_nothing():
    assert fetch_metrics("") == ""
    assert fetch_metrics("http://127.0.0.1:9/metrics") == ""
