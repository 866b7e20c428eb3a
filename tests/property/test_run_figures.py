"""The figures of a run agree with a plain recomputation, whatever the rows are and however they are cut."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from dataclasses import astuple
from unittest import mock

import pytest
from fakes.rows import completed_row, failed_row
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner import ledger
from trtb.runner.ledger import ResultRow
from trtb.runner.reporting import active_time, ledger_scan
from trtb.runner.reporting.ledger_scan import LedgerView
from trtb.runner.reporting.run_figures import NUM_EXAMPLES, NUM_SLOWEST, RunFigures, figures_of

NS_PER_S = 1_000_000_000
START_NS = 1_800_000_000 * NS_PER_S


@st.composite
def ledger_rows(draw: st.DrawFn) -> list[ResultRow]:
    rows = []
    for line in range(1, draw(st.integers(0, 30)) + 1):
        kind = draw(st.sampled_from(["own", "own", "own", "equal", "cache", "failed"]))
        finished_ns = START_NS + draw(st.integers(0, 400)) * NS_PER_S + draw(st.integers(0, 10**9))
        if kind == "failed":
            code = draw(st.sampled_from(["timeout", "engine_error"]))
            rows.append(
                failed_row(line, code, attempts=draw(st.integers(0, 3)), finished_ns=finished_ns, record=b"")
            )
            continue
        latency_ns = draw(st.integers(0, 40 * NS_PER_S)) if kind == "own" else 0
        rows.append(
            completed_row(
                line,
                attempts=1 if kind == "own" else 0,
                finished_ns=finished_ns,
                latency_ns=latency_ns,
                ttft_ns=draw(st.integers(0, latency_ns)),
                prompt_tokens=draw(st.integers(1, 10_000)),
                completion_tokens=draw(st.integers(0, 5_000)),
                finish_reason=draw(st.sampled_from(["stop", "length"])),
                reused_from=None if kind == "own" else kind,
                reused_blocks=draw(st.none() | st.integers(0, 50)) if kind == "own" else None,
                record=b"",
            )
        )
    return rows


def read(rows: list[ResultRow], *, chunk_rows: int = 7, **options: int) -> RunFigures:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(ledger.SCHEMA)
        marks = ", ".join("?" * len(ledger.COLUMN_NAMES))
        query = f"INSERT INTO results({ledger.COLUMNS}) VALUES ({marks})"
        connection.executemany(
            query, [tuple(getattr(row, name) for name in ledger.COLUMN_NAMES) for row in rows]
        )
        with mock.patch.object(ledger_scan, "CHUNK_ROWS", chunk_rows):
            return figures_of(LedgerView(connection), **options)


def own_of(rows: list[ResultRow]) -> list[ResultRow]:
    return [row for row in rows if row.status == "completed" and row.reused_from is None]


@given(ledger_rows())
def test_counts_are_those_of_the_rows(rows: list[ResultRow]) -> None:
    found = read(rows)
    completed = [row for row in rows if row.status == "completed"]
    failed = [row for row in rows if row.status == "failed"]
    own = own_of(rows)
    assert (found.num_completed, found.num_failed, found.num_own) == (len(completed), len(failed), len(own))
    assert found.num_equal + found.num_cached + found.num_own == found.num_completed
    assert found.prompt_tokens == sum(row.prompt_tokens for row in completed)
    assert found.completion_tokens == sum(row.completion_tokens for row in completed)
    assert found.own_completion_tokens == sum(row.completion_tokens for row in own)
    assert found.attempts == Counter(row.attempts for row in rows)
    assert found.finish_reasons == Counter(row.finish_reason for row in completed)
    assert {each.code: each.count for each in found.failures} == Counter(row.code for row in failed)
    for each in found.failures:
        lines = [row.line for row in failed if row.code == each.code]
        assert [name.line for name in each.examples] == lines[:NUM_EXAMPLES]
    told = [row for row in own if row.reused_blocks is not None]
    assert (found.kv is not None) == bool(told)
    if found.kv is not None:
        assert found.kv.num_blocks == sum(row.reused_blocks or 0 for row in told)
        assert (found.kv.num_requests, found.kv.prompt_tokens) == (
            len(told),
            sum(row.prompt_tokens for row in told),
        )


@given(ledger_rows())
def test_the_course_over_time_adds_up_to_the_whole(rows: list[ResultRow]) -> None:
    found = read(rows)
    own = own_of(rows)
    assert sum(each.num_finished for each in found.bins) == len(own)
    assert sum(each.busy_ns for each in found.bins) == sum(row.latency_ns for row in own)
    tokens = sum(row.completion_tokens for row in own)
    assert sum(each.output_tokens for each in found.bins) == pytest.approx(tokens)
    assert len(found.bins) <= active_time.MAX_BINS
    for before, after in itertools.pairwise(found.bins):
        assert before.end_ns <= after.start_ns
        assert (before.end_ns == after.start_ns) == (before.span == after.span)


@given(ledger_rows())
def test_each_step_has_what_was_in_flight_in_it(rows: list[ResultRow]) -> None:
    for each in read(rows).bins:
        overlaps = [
            max(0, min(row.finished_ns, each.end_ns) - max(row.finished_ns - row.latency_ns, each.start_ns))
            for row in own_of(rows)
        ]
        assert each.busy_ns == sum(overlaps)


@given(ledger_rows())
def test_a_request_lies_within_one_span_and_pauses_are_long(rows: list[ResultRow]) -> None:
    spans = read(rows).spans
    for row in own_of(rows):
        inside = [
            span
            for span in spans
            if span.start_ns <= row.finished_ns - row.latency_ns and row.finished_ns <= span.end_ns
        ]
        assert len(inside) == 1
    for before, after in itertools.pairwise(spans):
        assert after.start_ns - before.end_ns >= active_time.MIN_SHOWN_GAP_NS


@given(ledger_rows())
def test_distributions_hold_every_value_in_its_bin(rows: list[ResultRow]) -> None:
    found = read(rows)
    completed = [row for row in rows if row.status == "completed"]
    expected = {
        "latency": [row.latency_ns for row in own_of(rows)],
        "ttft": [row.ttft_ns for row in own_of(rows) if row.ttft_ns],
        "prompt_length": [row.prompt_tokens for row in completed],
        "answer_length": [row.completion_tokens for row in completed],
    }
    for kind, values in expected.items():
        distribution = getattr(found, kind)
        if not values:
            assert distribution is None
            continue
        assert (distribution.count, distribution.total) == (len(values), sum(values))
        assert (distribution.min, distribution.max) == (min(values), max(values))
        for held in distribution.bins:
            assert held.count == sum(held.low <= value < held.high for value in values)
        assert sum(held.count for held in distribution.bins) == len(values)
        exact = sorted(values)[-(-len(values) // 2) - 1]
        assert distribution.p50 == pytest.approx(exact, rel=0.003, abs=1)


@given(ledger_rows(), st.integers(1, 40))
def test_how_the_ledger_is_cut_makes_no_difference(rows: list[ResultRow], chunk_rows: int) -> None:
    one, other = read(rows, chunk_rows=chunk_rows), read(rows, chunk_rows=1000)
    for first, second in zip(one.bins, other.bins, strict=True):
        assert astuple(first) == pytest.approx(astuple(second), abs=1e-6)  # tokens are not whole
    assert one.slowest == other.slowest
    assert [each.latency_ns for each in one.slowest] == sorted(
        (row.latency_ns for row in own_of(rows)), reverse=True
    )[:NUM_SLOWEST]


@given(ledger_rows(), st.integers(0, 10), st.integers(0, 2**64 - 1))
def test_a_sample_depends_on_nothing_but_lines_and_seed(rows: list[ResultRow], size: int, seed: int) -> None:
    chosen = read(rows, num_sampled=size, seed=seed).sample
    assert chosen == read(rows, chunk_rows=3, num_sampled=size, seed=seed).sample
    assert len(set(chosen)) == min(size, len(rows))
    assert set(chosen) <= {row.line for row in rows}
    fewer = read(rows[:-1], num_sampled=size, seed=seed).sample
    assert set(chosen) - {len(rows)} <= set(fewer)  # a run that goes on keeps its sample, but for what is new
