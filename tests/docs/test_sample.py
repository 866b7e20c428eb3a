"""The sample file that `make demo` answers is valid, varied, and small enough for a slow machine."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

NUM_REQUESTS = 64
MAX_OUTPUT_TOKENS = 1500
MODEL = "smollm2-135m-instruct"


@pytest.fixture
def sample() -> Path:
    return Path(str(resources.files("trtb.tools") / "data" / "sample.jsonl"))


@pytest.fixture
def bodies(sample: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["body"] for line in sample.read_bytes().splitlines()]


def test_it_is_valid_without_a_warning(sample: Path) -> None:
    from trtb.runner.validate import validate_file

    report = validate_file(sample, model_names=frozenset({MODEL}), strict_params=True, max_line_bytes=1 << 20)
    assert (report.total, report.valid, report.findings) == (NUM_REQUESTS, NUM_REQUESTS, [])


def test_every_answer_is_bounded_and_all_together_are_few(bodies: list[dict[str, Any]]) -> None:
    bounds = [body.get("max_tokens") or body["max_completion_tokens"] for body in bodies]
    assert all(4 <= bound <= 48 for bound in bounds)
    assert sum(bounds) <= MAX_OUTPUT_TOKENS


def test_sampled_requests_have_a_seed_so_that_a_demo_repeats(bodies: list[dict[str, Any]]) -> None:
    assert all("seed" in body for body in bodies if body["temperature"] > 0)


def test_each_kind_of_request_is_there(bodies: list[dict[str, Any]]) -> None:
    keys = {key for body in bodies for key in body}
    assert keys >= {"stop", "top_k", "top_p", "seed", "presence_penalty", "frequency_penalty", "min_tokens"}
    roles = {message["role"] for body in bodies for message in body["messages"]}
    assert roles == {"system", "developer", "user", "assistant"}
    contents = [message["content"] for body in bodies for message in body["messages"]]
    assert any(isinstance(content, list) for content in contents)
    num_words = [len(content.split()) for content in contents if isinstance(content, str)]
    assert min(num_words) == 1
    assert max(num_words) > 500
