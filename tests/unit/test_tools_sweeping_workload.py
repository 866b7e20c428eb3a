"""What perf_analyzer is told to send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.manifest import fake_manifest

from trtb.build.errors import ConfigError
from trtb.model_repo import contract
from trtb.tools.sweeping.workload import check_lengths, special_ids, synthetic_entries, write_input_data

MANIFEST = fake_manifest()
KNOWN = {spec.name for spec in contract.INPUTS}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": n} for n in range(17)]}))
    return tmp_path


def test_random_prompts_have_their_length_and_no_special_id(tokenizer: Path):
    entries = synthetic_entries(MANIFEST, tokenizer, (64, 8), 40, "a")
    assert len(entries) == 40
    for entry in entries:
        tensors = entry.tensors
        assert tensors.keys() <= KNOWN
        assert tensors["input_ids"]["shape"] == [64] == tensors["input_lengths"]
        assert len(tensors["input_ids"]["content"]) == 64
        assert tensors["request_output_len"] == [8]
        assert tensors["streaming"] == [True]
        assert "end_id" not in tensors  # nothing ends an answer early
        assert min(tensors["input_ids"]["content"]) >= 17
        assert max(tensors["input_ids"]["content"]) < MANIFEST.model.vocab_size


def test_the_same_seed_gives_the_same_prompts_and_another_shares_none(tokenizer: Path):
    def first_blocks(seed: str) -> list[tuple[int, ...]]:
        entries = synthetic_entries(MANIFEST, tokenizer, (32, 8), 50, seed)
        return [tuple(entry.tensors["input_ids"]["content"]) for entry in entries]

    assert first_blocks("1234:c4:0") == first_blocks("1234:c4:0")
    both = first_blocks("1234:c4:0") + first_blocks("1234:c4:1")
    assert len(set(both)) == 100


def test_the_engines_own_tokens_are_special_without_a_tokenizer_file(tmp_path: Path):
    assert special_ids(tmp_path, MANIFEST) == {0, 1, 2}


def test_lengths_beyond_the_engine_are_refused_with_its_limit():
    check_lengths(MANIFEST, (8000, 192))
    with pytest.raises(ConfigError, match="8193 together; engine tiny-int8_wo@3 was built for 8192"):
        check_lengths(MANIFEST, (8000, 193))


def test_input_data_is_what_perf_analyzer_reads(tokenizer: Path):
    path = tokenizer / "work" / "input.json"
    write_input_data(path, synthetic_entries(MANIFEST, tokenizer, (4, 2), 3, "x"))
    assert [sorted(entry) for entry in json.loads(path.read_text())["data"]] == [
        sorted(
            {
                *("exclude_input_in_output", "input_ids", "input_lengths", "pad_id", "request_output_len"),
                *("runtime_top_k", "streaming"),
            }
        )
    ] * 3
