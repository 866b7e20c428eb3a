"""The engine's own cache, on the real engine: what a warm-up computes, and whether reuse is seen."""

from __future__ import annotations

from pathlib import Path

import commands
import pytest

pytestmark = pytest.mark.triton

SHARED = Path(__file__).parents[1] / "data" / "cases" / "shared-prefix-order.jsonl"


def test_the_real_engine_reuses_what_it_knows_and_verify_sees_it(shared_server):
    ended = commands.trtb(
        shared_server.home, "cache", "verify", "--endpoint", shared_server.endpoint, "--json"
    )
    found = ended.json
    # other work on this machine may blur the times: then it says so, and never the opposite
    assert ended.code in (0, 9), ended.stdout
    assert found["verdict"] == ("works" if ended.code == 0 else "cannot tell")
    assert [case["what"] for case in found["cases"]] == [
        "same request", "prefix of an ended request", "prefix of a request in flight"
    ]  # fmt: skip
    assert {case["seen_by"] for case in found["cases"]} == {"derived from prefill times"}
    assert all(case["reused_blocks"] is None for case in found["cases"])
    assert all(case["verdict"] != "computed again" for case in found["cases"][:2])
    assert bool(found["advice"]) == (ended.code == 9)


def test_a_warm_up_computes_each_shared_prefix_once_and_says_how_long_it_stays(shared_server):
    common = ("--endpoint", shared_server.endpoint, "--json")
    found = commands.trtb(shared_server.home, "cache", "warm", SHARED, *common).json
    assert (found["num_requests"], found["num_refused"], found["num_prefixes"]) == (24, 0, 4)
    assert found["num_warmed"] == 4
    assert found["num_kv_blocks"] == shared_server.num_kv_blocks
    assert 0 < found["num_blocks"] <= shared_server.num_kv_blocks
    assert found["num_tokens"] == 32 * found["num_blocks"]
    assert "least recently used first" in found["stays"]
    few = commands.trtb(shared_server.home, "cache", "warm", SHARED, *common, "--top", "1").json
    assert few["num_warmed"] == 1
    told = commands.trtb(shared_server.home, "cache", "warm", SHARED, *common[:2])
    assert "24 requests with 4 shared prefixes; 4 computed" in told.stdout
    assert "warning: nobody in flight holds these blocks" in told.stderr


def test_a_server_that_is_not_there_and_a_file_that_is_not_are_told(shared_server, tmp_path):
    missing = commands.trtb(
        shared_server.home, "cache", "warm", tmp_path / "no.jsonl", "--endpoint", "127.0.0.1:9"
    )  # the file is looked at before the server, which would be 6
    assert missing.code == 3, missing.stderr
    wrong = commands.trtb(shared_server.home, "cache", "verify", "--endpoint", "nowhere")
    assert wrong.code == 2, wrong.stderr
