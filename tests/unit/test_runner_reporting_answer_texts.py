"""How far two answers agree."""

from __future__ import annotations

import pytest
from fakes.compared import answer_row, texts_row

from trtb.runner.reporting.answer_texts import (
    AnswerText,
    answer_of,
    calls_agree,
    difference,
    json_of,
    words_of,
)


def said(text, calls=()):
    return AnswerText((text,), (tuple(calls),))


def test_an_answer_is_its_texts_and_calls_and_nothing_of_the_run():
    row = answer_row(1, None, calls=(("weather", '{"city":"Rome"}'),))
    assert answer_of(row.record) == answer_of(
        answer_row(7, "", calls=(("weather", '{"city":"Rome"}'),)).record
    )
    assert answer_of(row.record).calls == ((("weather", '{"city":"Rome"}'),),)
    assert answer_of(texts_row(1, ["one", "two"]).record).texts == ("one", "two")


@pytest.mark.parametrize(
    ("a", "b", "kind", "num_same", "similarity"),
    [
        ("the sky is blue", "the sky is blue", "equal", 4, 1.0),
        ("the sky is", "the sky is blue", "prefix", 3, 6 / 7),
        ("the sky is blue", "the sea is blue", "different", 1, 3 / 4),
        ("one two", "three four", "different", 0, 0.0),
        ("a b c d", "d c b a", "different", 0, 1 / 4),
        ("the sky", "the  sky", "different", 2, 1.0),  # the same words, other bytes
        ("", "words", "prefix", 0, 0.0),
        ("", "", "equal", 0, 1.0),
        ("空は青い", "空は赤い", "different", 2, 3 / 4),
    ],
)
def test_answers_are_told_apart_by_words(a, b, kind, num_same, similarity):
    for found in (difference(said(a), said(b)), difference(said(b), said(a))):
        assert (found.kind, found.num_same_words) == (kind, num_same)
        assert found.similarity == pytest.approx(similarity)


def test_what_both_begin_with_is_a_share_of_the_longer_answer():
    assert difference(said("a b c"), said("a b c d e f")).same_beginning == 0.5
    assert difference(said(""), said("")).same_beginning == 1.0


def test_another_tool_call_is_another_answer():
    a, b = said("", [("f", '{"x": 1}')]), said("", [("f", '{"x":1}')])
    assert difference(a, b).kind == "different"
    assert calls_agree(a, b)
    assert not calls_agree(a, said("", [("g", '{"x": 1}')]))
    assert not calls_agree(a, said(""))
    assert calls_agree(said("", [("f", "{broken")]), said("", [("f", "{broken")]))


def test_only_a_whole_object_or_list_is_json():
    assert json_of(said(' {"a": [1]}\n')) == {"a": [1]}
    assert json_of(said("[]")) == []
    for text in ("3", '"text"', "{broken", '{"a": 1} and more', "", "[" * 100_000):
        assert json_of(said(text)) is None
    assert json_of(AnswerText(("{}", "{}"), ((), ()))) is None


def test_words_of_every_script_are_counted():
    assert words_of("don't_stop: naïve 数据") == ["don", "'", "t", "_", "stop", ":", "naïve", "数", "据"]
