"""What a report warns of: when, and with which setting."""

from __future__ import annotations

import pytest
from fakes.samples import facts, sample

from trtb.runner.reporting import warnings
from trtb.runner.reporting.diagnosis import diagnose


def test_cut_answers_are_told_with_their_share():
    (text,) = warnings.cut_answers(3, 12)
    assert text.startswith("3 answers cut by max_tokens (finish_reason length), 25.0% of the completed")
    assert "--default-max-tokens" in text
    assert not list(warnings.cut_answers(0, 12))
    assert not list(warnings.cut_answers(0, 0))


@pytest.mark.parametrize(("is_exact", "count"), [(False, 1), (True, 0), (None, 0)])
def test_only_answers_that_are_known_to_depend_on_company_are_warned_of(is_exact, count):
    assert len(list(warnings.company(is_exact, 0))) == count


def test_answers_of_the_cache_that_may_depend_on_company_are_told():
    (text,) = warnings.company(False, 12)
    assert text.startswith("12 answers of the result cache may depend on what else was in flight")
    assert "--no-cache" in text


def test_places_that_were_never_used_are_told_with_their_cause():
    (text,) = warnings.unused_places(7, 64, 100, 0.95)
    assert text.startswith("never more than 7 requests in flight, of 64 that might be: the KV pool was full")
    assert "--num-kv-blocks" in text
    (text,) = warnings.unused_places(7, 64, 100, None)
    assert "trtb report" in text


@pytest.mark.parametrize("figures", [(32, 64, 100, 0.9), (7, 64, 63, 0.9)], ids=["used", "small file"])
def test_places_that_were_used_or_not_needed_are_not(figures):
    assert not list(warnings.unused_places(*figures))


def test_low_concurrency_and_a_long_tail_are_told_with_their_settings():
    low = sample(in_flight=4.0, max_in_flight=4, bound=4.0)
    found = diagnose(facts(concurrency=4), [low] * 10)
    (text,) = warnings.from_diagnosis(found, 10.0)
    assert text.startswith("low concurrency: ")
    assert "(--concurrency 7)" in text
    tail = sample(in_flight=1.0, max_in_flight=1, drained_fraction=1.0)
    found = diagnose(facts(), [sample()] * 7 + [tail] * 3)
    (text,) = warnings.from_diagnosis(found, 10.0)
    assert text == "a long tail: for 3 s of 10 s few requests were left in flight (--order length)"


def test_a_well_used_engine_is_not_warned_of():
    tail = sample(in_flight=1.0, max_in_flight=1, drained_fraction=1.0)
    found = diagnose(facts(), [sample()] * 9 + [tail])
    assert not list(warnings.from_diagnosis(found, 10.0))
    assert not list(warnings.from_diagnosis(None, 10.0))


def test_lost_samples_are_told():
    assert not list(warnings.lost_samples(None))
    (text,) = warnings.lost_samples("samples.jsonl: No space left on device")
    assert "No space left on device" in text
