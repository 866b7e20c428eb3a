"""What is measured of an engine, by its definitions, and what is refused."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtb.build import quality
from trtb.build.errors import ConfigError, QuantizationError
from trtb.build.manifest import QualityReport
from trtb.build.pipeline import check_quality_bound, check_quality_loss
from trtb.build.quality import TextScore
from trtb.build.quantization import get_scheme

LOGITS = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1 / 3, 1 / 3, 1 / 3]]))
REPORT = QualityReport(base="f16", num_tokens=888, perplexity=11.0, base_perplexity=10.0, top1_agreement=0.75)


def test_scores_are_those_of_the_definition() -> None:
    found = quality.score(LOGITS, [2, 0, 1])
    assert found.perplexity == pytest.approx((0.5 * 0.8) ** -0.5)
    assert found.top1.tolist() == [0, 1]
    report = quality.compare(found, quality.score(LOGITS[:, ::-1], [2, 0, 1]), "f16")
    assert (report.num_tokens, report.top1_agreement, report.greedy_agreement) == (2, 0.5, None)


def test_a_score_does_not_depend_on_the_size_of_the_logits() -> None:
    far = quality.score(LOGITS + 5000, [2, 0, 1])
    assert far.log_probs == pytest.approx(quality.score(LOGITS, [2, 0, 1]).log_probs)


def test_texts_weigh_by_their_tokens() -> None:
    short, long = quality.score(LOGITS[:2], [2, 0]), quality.score(LOGITS, [2, 0, 1])
    joined = quality.join([short, long], answers=((1, 2),))
    assert joined.perplexity == pytest.approx((0.5 * 0.5 * 0.8) ** (-1 / 3))
    assert joined.top1.tolist() == [0, 0, 1]
    assert joined.answers == ((1, 2),)


@pytest.mark.parametrize(
    ("answer", "share"),
    [((1, 2, 3, 4), 1.0), ((9, 2, 3, 4), 0.0), ((1, 2, 9, 4), 0.5), ((1, 2, 3, 9), 0.75)],
)
def test_an_answer_agrees_up_to_its_first_different_token(answer: tuple[int, ...], share: float) -> None:
    assert quality.greedy_agreement((answer,), ((1, 2, 3, 4),)) == share


ANSWERS = st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8).map(tuple), min_size=1).map(tuple)


@given(answers=ANSWERS)
def test_equal_answers_agree_and_the_mean_is_over_the_prompts(answers: quality.Answers) -> None:
    assert quality.greedy_agreement(answers, answers) == 1.0
    broken = ((-1, *answers[0][1:]), *answers[1:])
    assert quality.greedy_agreement(broken, answers) == pytest.approx(1 - 1 / len(answers))


def test_answers_of_different_lengths_are_not_compared_in_silence() -> None:
    with pytest.raises(ValueError, match="longer"):
        quality.greedy_agreement(((1, 2),), ((1, 2, 3),))


def test_an_engine_at_its_bound_is_taken_and_one_beyond_it_refused_with_the_figures() -> None:
    scheme = dataclasses.replace(get_scheme("openvino", "fp8"), max_perplexity_ratio=1.1)
    quality.check_report(REPORT, scheme)
    worse = REPORT.model_copy(update={"perplexity": 11.01})
    with pytest.raises(QuantizationError) as caught:
        quality.check_report(worse, scheme)
    for figure in ("fp8", "11.010", "10.000", "1.101", "1.1;", "75.0% of 888"):
        assert figure in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("perplexity", [math.nan, math.inf])
def test_an_engine_without_a_figure_is_refused(perplexity: float) -> None:
    with pytest.raises(QuantizationError):
        quality.check_report(
            REPORT.model_copy(update={"perplexity": perplexity}), get_scheme("openvino", "fp8")
        )
    with pytest.raises(QuantizationError):
        quality.check_conversion(10.0, perplexity)


@pytest.mark.parametrize("factor", [1.0, quality.MAX_CONVERSION_RATIO, 1 / quality.MAX_CONVERSION_RATIO])
def test_a_conversion_that_changes_the_arithmetic_only_is_taken(factor: float) -> None:
    quality.check_conversion(1.0, factor)


@pytest.mark.parametrize("perplexity", [9.5, 10.5])
def test_a_conversion_that_thinks_otherwise_is_refused_either_way(perplexity: float) -> None:
    with pytest.raises(QuantizationError, match=r"against 10\.000 of the checkpoint by torch"):
        quality.check_conversion(10.0, perplexity)


def test_the_texts_are_long_enough_to_be_gone_on_with() -> None:
    texts = quality.quality_texts()
    assert len(set(texts)) == len(texts) == 8
    # at more than six characters a token, no vocabulary is that coarse on all of them
    assert all(len(text) > 6 * quality.NUM_PROMPT_TOKENS for text in texts)


def test_a_score_survives_json(tmp_path: object) -> None:
    found = quality.score(LOGITS, [2, 0, 1])
    copy = TextScore(np.array(found.log_probs.tolist()), np.array(found.top1.tolist()))
    assert quality.compare(copy, found, "f16").perplexity == found.perplexity


def report(perplexity: float) -> QualityReport:
    return QualityReport(
        base="f16", num_tokens=10, perplexity=perplexity, base_perplexity=10.0, top1_agreement=0.9
    )


def test_an_engine_that_lost_more_than_it_may_is_refused_with_its_figures() -> None:
    check_quality_loss(report(11.0), None)
    check_quality_loss(report(11.0), 0.1001)
    check_quality_loss(report(9.0), 0.0)
    for perplexity in (11.1, float("nan"), float("inf")):
        with pytest.raises(QuantizationError, match=r"a loss of .*; expected at most 10\.0%"):
            check_quality_loss(report(perplexity), 0.1)
    with pytest.raises(QuantizationError, match="not measured"):
        check_quality_loss(None, 0.1)


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -0.1])
def test_a_bound_must_bound_something(bound: float) -> None:
    check_quality_bound(None)
    check_quality_bound(0.0)
    with pytest.raises(ConfigError, match="max-quality-loss"):
        check_quality_bound(bound)
