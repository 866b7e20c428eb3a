"""Rows of answers: what the engine told of its cache is kept, and nothing is made up where it did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from fakes.manifest import fake_manifest
from fakes.runs import fake_options, fake_record
from fakes.work import item

from trtb.runner.answer import Answer, Choice
from trtb.runner.outcomes import RowMaker
from trtb.runner.scheduling.schedule_equal import Reused


@pytest.fixture
def rows(tmp_path: Path) -> RowMaker:
    return RowMaker(fake_record(fake_options(tmp_path)), fake_manifest())


def answer(reused_blocks: int | None) -> Answer:
    return Answer([Choice("Hi", "stop", 1)], 5, 3, reused_blocks=reused_blocks)


def usage(record: bytes) -> dict[str, object]:
    return orjson.loads(record)["response"]["body"]["usage"]


@pytest.mark.parametrize(("blocks", "tokens"), [(0, 0), (2, 64), (4, 100)])
def test_reused_blocks_are_the_rows_and_no_more_tokens_than_the_prompt_has(rows, blocks, tokens):
    row = rows.completed(replace(item(1), num_prompt_tokens=100), answer(blocks))
    assert row.reused_blocks == blocks
    assert usage(row.record)["prompt_tokens_details"] == {"cached_tokens": tokens}


def test_an_engine_that_does_not_count_leaves_both_out(rows):
    row = rows.completed(item(1), answer(None))
    assert row.reused_blocks is None
    assert "prompt_tokens_details" not in usage(row.record)


def test_an_answer_is_told_alike_by_its_engine_and_by_the_result_cache(rows):
    line = replace(item(1), num_prompt_tokens=100)
    computed, kept = rows.completed(line, answer(2)), rows.to_keep(line, answer(2))
    again = rows.cached(1, line.custom_id, kept, is_chat=True)
    assert again.record == computed.record
    assert (again.reused_blocks, again.reused_from) == (None, "cache")


def test_a_line_that_was_not_sent_reused_no_blocks(rows):
    line = replace(item(1), num_prompt_tokens=100)
    row = rows.reused(Reused(2, "c-2", line, answer(2)))
    assert (row.reused_blocks, row.reused_from, row.attempts) == (None, "equal", 0)
