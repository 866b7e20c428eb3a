"""The diagnosis: each cause by samples of its own, and none where the samples show none."""

from __future__ import annotations

import pytest
from fakes.samples import facts, sample

from trtb.build.probe.gpu_use import GpuUse
from trtb.runner.reporting.diagnosis import Diagnosis, describe, diagnose

FEW = {"in_flight": 1.0, "max_in_flight": 1, "bound": 1.0, "blocks_held": 3.0}
STARVED = {"in_flight": 7.0, "max_in_flight": 7, "waiting": 1.0, "blocks_held": 950.0}


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [each.kind for each in diagnosis.bottlenecks]


def only(diagnosis: Diagnosis) -> tuple[str, str, str]:
    """Return the one cause, its evidence and its setting."""
    (found,) = diagnosis.bottlenecks
    assert found.share == 1.0
    return found.kind, "; ".join(found.evidence), found.setting


def test_a_full_engine_is_named_with_what_shows_it():
    kind, evidence, setting = only(diagnose(facts(), [sample()] * 10))
    assert kind == "engine"
    assert "64.0 of 64 requests in flight" in evidence
    assert "the server on 1.9 of 2 processors" in evidence
    assert "client's thread busy for 10%" in evidence
    assert "trtb sweep" in setting


def test_places_that_are_full_on_an_empty_engine_are_too_few():
    kind, evidence, setting = only(diagnose(facts(concurrency=1), [sample(**FEW)] * 10))
    assert kind == "concurrency"
    assert "1.0 of 1 requests in flight" in evidence
    assert "3 of 1000 KV blocks held (0%)" in evidence
    assert setting == "--concurrency 32"


def test_more_places_than_the_pool_or_the_engine_takes_are_not_advised():
    some = {"in_flight": 8.0, "max_in_flight": 8, "bound": 8.0}
    by_pool = diagnose(facts(concurrency=8), [sample(**some, blocks_held=400.0)] * 10)
    assert only(by_pool)[2] == "--concurrency 18"  # 90 % of 1000 blocks, at 50 a request
    by_engine = diagnose(facts(concurrency=8, max_batch_size=12), [sample(**some, blocks_held=40.0)] * 10)
    assert only(by_engine)[2] == "--concurrency 12"
    all_taken = diagnose(facts(concurrency=8, max_batch_size=8), [sample(**some, blocks_held=40.0)] * 10)
    assert only(all_taken)[0] == "engine"


def test_a_gpu_gains_by_more_requests_than_a_cpu():
    told = sample(blocks_held=100.0, gpus=(GpuUse(0, busy_fraction=1.0),))
    assert kinds(diagnose(facts(is_gpu=True, max_batch_size=256), [told] * 10)) == ["concurrency"]
    assert kinds(diagnose(facts(), [told] * 10)) == ["engine"]


def test_requests_that_wait_for_blocks_want_a_larger_pool():
    kind, evidence, setting = only(diagnose(facts(), [sample(**STARVED)] * 10))
    assert kind == "kv_pool"
    assert "950 of 1000 KV blocks held (95%)" in evidence
    assert setting.startswith("--num-kv-blocks 9143 (now 1001), or lower max_tokens")
    gpu = diagnose(facts(is_gpu=True, is_own_server=False), [sample(**STARVED)] * 10)
    assert only(gpu)[2].startswith("--trtllm-parameter kv_cache_free_gpu_mem_fraction=0.95 of trtb serve")


def test_a_server_that_refused_wants_a_larger_pool():
    lowered = sample(in_flight=8.0, max_in_flight=8, bound=8.0, num_blocks=None, blocks_held=None)
    kind, evidence, _ = only(diagnose(facts(num_full=3), [lowered] * 10))
    assert kind == "kv_pool"
    assert "refused 3 times by the server" in evidence


def test_a_busy_client_is_named_and_what_keeps_it_busy():
    busy = sample(loop_busy_s=0.9, client_cpu_s=0.95)
    kind, evidence, setting = only(diagnose(facts(), [busy] * 10))
    assert kind == "client"
    assert "the client's thread busy for 90% of the time" in evidence
    assert "split the file" in setting
    preparing = sample(loop_busy_s=0.9, prepare_s=0.6)
    kind, evidence, setting = only(diagnose(facts(), [preparing] * 10))
    assert kind == "tokenisation"
    assert "rendering and tokenising for 60%" in evidence
    assert setting.startswith("send prompts as token ids")


def test_the_last_few_requests_are_a_tail_and_the_rest_is_not():
    tail = sample(in_flight=2.0, max_in_flight=3, drained_fraction=1.0)
    found = diagnose(facts(), [sample()] * 6 + [sample(drained_fraction=1.0)] + [tail] * 3)
    assert [(each.kind, each.share) for each in found.bottlenecks] == [("engine", 0.7), ("long_tail", 0.3)]
    assert found.tail_s == 3.0
    assert found.bottlenecks[1].setting == "--order length"
    sorted_already = diagnose(facts(order="length"), [sample()] * 6 + [tail] * 4)
    assert "max_tokens" in sorted_already.bottlenecks[1].setting


def test_a_file_of_few_requests_has_no_tail_while_all_are_in_flight():
    few = sample(in_flight=5.0, max_in_flight=5, drained_fraction=1.0)
    assert kinds(diagnose(facts(), [few] * 10)) == ["engine"]


def test_what_comes_before_the_first_request_counts_where_it_is_much():
    found = diagnose(facts(startup_s=20.0, planning_s=15.0), [sample()] * 10)
    assert kinds(found) == ["start_up", "planning", "engine"]
    assert found.bottlenecks[0].evidence[0] == "20.0 s until the server had generated a token"
    assert found.bottlenecks[1].setting == "--order input --no-dedup"
    assert kinds(diagnose(facts(startup_s=2.0, planning_s=2.0), [sample()] * 10)) == ["engine"]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (sample(in_flight=3.0, max_in_flight=3), "places stood free"),
        (
            sample(in_flight=3.0, max_in_flight=3, waiting=5.0),
            "for a shared prefix, the canary, or a server that was down",
        ),
        (sample(server_cpu_s=0.01), "neither the client nor the server computed"),
    ],
)
def test_time_that_shows_no_cause_is_unknown_with_what_is_odd(odd, why):
    found = diagnose(facts(), [odd] * 10)
    assert found.bottlenecks == []
    assert found.unknown_share == 1.0
    assert found.unknown_why
    assert why in found.unknown_why
    assert describe(found)[0].startswith("cannot tell for 100% of the time: ")


def test_idle_processors_say_nothing_of_a_gpu_engine_but_an_idle_gpu_does():
    unseen = sample(server_cpu_s=0.01, blocks_held=900.0)
    assert kinds(diagnose(facts(is_gpu=True), [unseen] * 10)) == ["engine"]
    idle = sample(server_cpu_s=0.01, blocks_held=900.0, gpus=(GpuUse(0, busy_fraction=0.05),))
    assert kinds(diagnose(facts(is_gpu=True), [idle] * 10)) == []


def test_of_a_server_of_others_the_engine_is_what_is_left():
    unseen = sample(server_cpu_s=None, server_rss_bytes=None)
    assert kinds(diagnose(facts(is_own_server=False), [unseen] * 10)) == ["engine"]


@pytest.mark.parametrize("samples", [[], [sample()]])
def test_nothing_is_claimed_without_data(samples):
    found = diagnose(facts(running_s=0.7), samples)
    assert found.bottlenecks == []
    assert found.unknown_why == "its requests took 0.7 s: too short to be watched"


def test_a_short_run_may_still_be_one_of_starting_up():
    assert kinds(diagnose(facts(startup_s=4.0, running_s=0.7), [])) == ["start_up"]


def test_shares_add_up_to_no_more_than_the_whole():
    mixed = [sample(), sample(**STARVED), sample(loop_busy_s=0.9), sample(in_flight=1.0)] * 5
    found = diagnose(facts(startup_s=5.0, planning_s=5.0, running_s=20.0), mixed)
    assert sum(each.share for each in found.bottlenecks) + found.unknown_share <= 1.0


def test_people_read_the_two_greatest_causes_with_what_to_change():
    found = diagnose(facts(startup_s=5.0), [sample()] * 8 + [sample(**STARVED)] * 2)
    lines = describe(found)
    assert [line.split(",")[0] for line in lines[::2]] == ["the engine", "start-up"]
    assert all(line.startswith("  to change: ") for line in lines[1::2])
    assert len(lines) == 4


def test_a_pool_that_holds_one_request_of_large_ones_is_the_limit():
    """Half of it is held, and no other like the one in flight fits beside it."""
    held = sample(in_flight=1.0, max_in_flight=1, waiting=11.0, blocks_held=5.0, num_blocks=9)
    roomy = sample(in_flight=1.0, max_in_flight=1, waiting=11.0, blocks_held=5.0, num_blocks=90)

    assert [each.kind for each in diagnose(facts(), [held] * 5).bottlenecks] == ["kv_pool"]
    assert diagnose(facts(), [roomy] * 5).bottlenecks == []
