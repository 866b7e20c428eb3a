"""A run with the result cache, without an engine: what is kept with an answer, and what is told of it."""

from __future__ import annotations

import pytest
from fakes.runs import fake_options, fake_record, request_line
from fakes.work import item

from trtb.runner.answer import Answer, Choice
from trtb.runner.caching.cached_run import CachedRun
from trtb.runner.exactness import weakest
from trtb.runner.ledger import ResultRow
from trtb.runner.line_set import LineSet
from trtb.runner.options import RunOptions
from trtb.runner.run import run_batch
from trtb.runner.run_folder import RunPaths

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 4}


@pytest.fixture
def options(tmp_path, monkeypatch) -> RunOptions:
    """Options of a run of two lines; nobody listens where it would send them."""
    monkeypatch.setenv("TRTB_HOME", str(tmp_path))
    lines = [
        request_line(line, body={**GREEDY, "messages": [{"role": "user", "content": f"Say {line}."}]})
        for line in (1, 2)
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "engine").mkdir()
    return fake_options(tmp_path, cache=True, model_aliases=("*",))


def begin(options: RunOptions) -> CachedRun:
    paths = RunPaths(options.output.with_suffix(".kept"))
    paths.folder.mkdir(exist_ok=True)
    return CachedRun(options, fake_record(options), paths)


def keep(options: RunOptions, exactness: tuple[bool | None, ...]) -> None:
    session = begin(options)
    assert look_up(session) == []
    assert weakest(session.exactness) is None
    for line, is_exact in enumerate(exactness, 1):
        answer = Answer([Choice("x", "stop", 1)], 1, 1)
        session.keep(item(line, temperature=0, max_tokens=4), answer, is_exact=is_exact)
    session.close()
    assert session.report().stored == len(exactness)


def look_up(session: CachedRun) -> list[ResultRow]:
    rows: list[ResultRow] = []
    session.look_up(LineSet(), LineSet(), rows.append)
    return rows


@pytest.mark.parametrize(
    ("exactness", "expected", "num_inexact"),
    [((True, True), True, 0), ((True, None), None, 0), ((None, False), False, 1), ((False, False), False, 2)],
)
def test_an_answer_is_as_exact_as_where_it_was_computed(options, exactness, expected, num_inexact):
    keep(options, exactness)
    session = begin(options)
    assert len(look_up(session)) == 2
    session.close()
    assert weakest(session.exactness) is expected
    # and no session of an exact server makes them so
    assert weakest({True, *session.exactness}) is expected
    assert (session.report().hits, session.report().inexact_hits) == (2, num_inexact)


def test_a_report_tells_of_answers_that_an_inexact_server_gave(options):
    keep(options, (True, False))
    made = run_batch(options)
    assert (made.cached, made.is_exact, made.cache and made.cache.inexact_hits) == (2, False, 1)
    assert any(warning.startswith("1 answer of the result cache may depend") for warning in made.warnings)


def test_a_report_of_exact_answers_says_so(options):
    keep(options, (True, True))
    assert run_batch(options).is_exact is True
