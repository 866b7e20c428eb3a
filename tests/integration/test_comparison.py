"""Two real runs side by side: one again, and one with another setting."""

from __future__ import annotations

import commands
import pytest
import request_lines
from request_lines import chat

from trtb.runner.run_folder import RunPaths

pytestmark = pytest.mark.triton

NUM_REQUESTS = 12


def requests(**body):
    return [
        chat(f"id-{number}", f"Tell me of the number {number}.", **body) for number in range(NUM_REQUESTS)
    ]


@pytest.fixture
def ran(shared_server, tmp_path):
    """Return a function that runs lines into NAME.jsonl, and returns that."""

    def make(name, lines, *options):
        path = request_lines.write(tmp_path / f"{name}-in.jsonl", lines)
        output = tmp_path / f"{name}.jsonl"
        use = ("--endpoint", shared_server.endpoint, "-o", output, "--no-dedup")
        done = commands.trtb(shared_server.home, "run", path, *use, *options)
        assert done.code == 0, done.stderr
        return output

    return make


def test_a_run_again_gives_the_same_answers_and_one_with_fewer_tokens_their_beginnings(
    shared_server, ran, tmp_path
):
    lines = requests(max_tokens=None)
    first = ran("first", lines, "--default-max-tokens", 8)
    again = ran("again", list(reversed(lines)), "--default-max-tokens", 8)
    short = ran("short", lines[:8], "--default-max-tokens", 3)

    same = commands.trtb(shared_server.home, "report", first, again, "--min-agreement", 1, "--json")
    assert same.code == 0, same.stderr
    agreement = same.json["agreement"]
    assert (agreement["equal"]["count"], agreement["equal"]["of"]) == (NUM_REQUESTS, NUM_REQUESTS)
    assert same.json["counts"]["only_a"] == same.json["counts"]["only_b"] == 0
    assert not same.json["same_input"]

    cut = commands.trtb(
        shared_server.home, "report", first, short, "--min-agreement", 0.5, "--json", "--html"
    )
    assert cut.code == 1
    found = cut.json
    assert (found["counts"]["in_both"], found["counts"]["only_a"]) == (8, NUM_REQUESTS - 8)
    assert found["agreement"]["begun_alike"] == 8
    assert found["lengths"]["b"]["p99"] == 3
    assert "default_max_tokens: A 8, B 3" in found["speed"]["cautions"]
    assert (RunPaths(short).folder / "comparison.html").stat().st_size > 10_000
    told = commands.trtb(shared_server.home, "report", first, short)
    assert "verdict    answers: 0 of 8" in told.stdout
