"""What an engine was built for, read from its files; what does not match its manifest is refused."""

from __future__ import annotations

import json

import pytest
from fakes.trtllm_engine import fake_trtllm_manifest, write_tokenizer_json, write_trtllm_engine
from tokenizers import Tokenizer

from trtb.build.backends import tensorrt_llm
from trtb.build.compatibility import TENSOR_CHANGES, TRTLLM_RELEASES, tensor_name_in
from trtb.build.errors import ConfigError, EngineCorruptError
from trtb.model_repo import contract
from trtb.model_repo.tokenizer_info import write_tokenizer_info
from trtb.model_repo.trtllm_engine import (
    ENGINE_FOLDER,
    TOKENIZER_INFO,
    can_guide,
    check_release,
    read_engine,
)

# what the template of 0.19.0 declares, of the tensors that trtb speaks
NAMES_OF_0_19 = {
    *("input_ids", "input_lengths", "request_output_len", "num_return_sequences", "end_id", "pad_id"),
    *("stop_words_list", "temperature", "runtime_top_k", "runtime_top_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "min_length", "random_seed", "return_log_probs"),
    *("return_perf_metrics", "streaming", "exclude_input_in_output", "guided_decoding_guide_type"),
    *("guided_decoding_guide", "output_ids", "sequence_length", "cum_log_probs", "output_log_probs"),
    *("sequence_index", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks"),
    *("kv_cache_alloc_total_blocks", "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns"),
    "last_token_time_ns",
}


def test_an_engine_says_what_it_was_built_for(tmp_path):
    manifest = fake_trtllm_manifest("llama-3.1-70b", "fp8", tp_size=4)
    engine = read_engine(write_trtllm_engine(tmp_path / "e", manifest), manifest)
    assert (engine.version, engine.world_size, engine.max_seq_len) == ("1.2.1", 4, 8192)
    assert (engine.max_batch_size, engine.max_num_tokens, engine.tokens_per_block) == (256, 8192, 32)
    assert engine.is_paged
    assert engine.has_paged_context
    assert not (engine.can_stream_weights or engine.has_lora or engine.drafting_mode)


@pytest.mark.parametrize(
    ("built", "field", "value"),
    [
        ({"use_paged_context_fmha": False}, "has_paged_context", False),
        ({"kv_cache_type": "CONTINUOUS"}, "is_paged", False),
        ({"kv_cache_type": "KVCacheType.PAGED"}, "is_paged", True),
        ({"remove_input_padding": False}, "is_paged", False),
        ({"weight_streaming": True}, "can_stream_weights", True),
        ({"lora_plugin": "bfloat16"}, "has_lora", True),
        ({"max_beam_width": 4}, "max_beam_width", 4),
        ({"speculative_decoding_mode": 4}, "drafting_mode", "medusa"),
        ({"speculative_decoding_mode": 8}, "drafting_mode", "lookahead"),
        ({"speculative_decoding_mode": 16}, "drafting_mode", "redrafter"),
        ({"speculative_decoding_mode": 32}, "drafting_mode", "eagle"),
        ({"speculative_decoding_mode": None}, "drafting_mode", None),
    ],
)
def test_a_feature_is_read_as_trtllm_build_wrote_it(tmp_path, built, field, value):
    manifest = fake_trtllm_manifest()
    engine = read_engine(write_trtllm_engine(tmp_path / "e", manifest, **built), manifest)
    assert getattr(engine, field) == value


@pytest.mark.parametrize(
    ("built", "said"),
    [
        ({"max_seq_len": 4096}, "max_seq_len: 4096; the manifest of llama-3.1-8b-fp8@1 says 8192"),
        ({"max_batch_size": 8}, "max_batch_size: 8; the manifest"),
        ({"max_num_tokens": 64}, "max_num_tokens: 64; the manifest"),
        ({"tokens_per_block": 64}, "tokens_per_block: 64; the manifest"),
        ({"kv_cache_type": None, "plugin_config": {}}, "KeyError"),
    ],
)
def test_an_engine_that_is_not_its_manifests_is_corrupt(tmp_path, built, said):
    manifest = fake_trtllm_manifest()
    with pytest.raises(EngineCorruptError) as caught:
        read_engine(write_trtllm_engine(tmp_path / "e", manifest, **built), manifest)
    assert said in caught.value.message


@pytest.mark.parametrize("name", ["config.json", "rank3.engine"])
def test_a_missing_file_is_named(tmp_path, name):
    manifest = fake_trtllm_manifest("llama-3.1-70b", tp_size=4)
    folder = write_trtllm_engine(tmp_path / "e", manifest)
    (folder / ENGINE_FOLDER / name).unlink()
    with pytest.raises(EngineCorruptError, match=f"{name}: not found"):
        read_engine(folder, manifest)


def test_the_build_and_the_server_mean_the_same_folder():
    assert tensorrt_llm.ENGINE_FOLDER == ENGINE_FOLDER


@pytest.mark.parametrize("release", TRTLLM_RELEASES, ids=lambda release: release.version)
def test_each_release_of_the_table_is_served_under_the_contracts_names(release):
    check_release(release.version, fake_trtllm_manifest())
    for spec in (*contract.INPUTS, *contract.OUTPUTS):
        assert tensor_name_in(release.version, spec.name) == spec.name


def test_the_table_of_changes_turns_todays_names_into_those_of_0_19():
    names = [spec.name for spec in (*contract.INPUTS, *contract.OUTPUTS)]
    old = [tensor_name_in("0.19.0", name) for name in names]
    assert {name for name in old if name} == NAMES_OF_0_19
    assert {change.name for change in TENSOR_CHANGES} <= set(names)
    assert [tensor_name_in("0.20.0", name) for name in names] == names


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.19.0", "min_tokens is called min_length and seed is called random_seed"),
        ("0.18.2", "min_tokens is called min_length"),
        ("0.21.0", "before compiled engines were served as in 1.x"),
        ("1.3.0rc20", "of others it is not known what they declare"),
        ("mine", "is no version"),
    ],
)
def test_an_engine_of_another_release_is_refused_with_the_reason(tmp_path, version, said):
    manifest = fake_trtllm_manifest(tensorrt_llm=version)
    with pytest.raises(ConfigError) as caught:
        read_engine(write_trtllm_engine(tmp_path / "e", manifest), manifest)
    assert caught.value.message.startswith(f"llama-3.1-8b-fp8@1: built with TensorRT-LLM {version}")
    assert said in caught.value.message
    assert "trtb build --model llama-3.1-8b" in caught.value.hint


def test_the_vocabulary_of_guided_decoding_is_the_tokenizers_own_by_id(tmp_path):
    folder = write_trtllm_engine(tmp_path / "e", fake_trtllm_manifest())
    path = folder / "tokenizer" / "tokenizer.json"
    write_tokenizer_json(path, {"a": 0, "b": 1, "ab": 2}, end=3, start=4)
    assert not can_guide(folder)
    assert write_tokenizer_info(folder, [3])
    info = json.loads((folder / TOKENIZER_INFO).read_text())
    vocabulary = Tokenizer.from_file(str(path)).get_vocab()
    assert info["encoded_vocab"] == sorted(vocabulary, key=vocabulary.__getitem__)
    assert Tokenizer.from_str(info["tokenizer_str"]).encode("ab").ids == [2]
    assert info["stop_token_ids"] == [3]
    assert can_guide(folder)


def test_the_vocabulary_of_a_unigram_tokenizer_is_read_too(tmp_path):
    folder = write_trtllm_engine(tmp_path / "e", fake_trtllm_manifest())
    data = {"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1.5]]}, "added_tokens": None}
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(data))
    assert write_tokenizer_info(folder, [0])
    assert json.loads((folder / TOKENIZER_INFO).read_text())["encoded_vocab"] == ["<unk>", "a"]


def test_a_vocabulary_with_gaps_leaves_guided_decoding_off(tmp_path):
    folder = write_trtllm_engine(tmp_path / "e", fake_trtllm_manifest())
    data = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}}
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(data))
    assert not write_tokenizer_info(folder, [2])
    assert not can_guide(folder)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"model": {}}'])
def test_a_tokenizer_that_is_missing_or_damaged_is_named(tmp_path, text):
    folder = write_trtllm_engine(tmp_path / "e", fake_trtllm_manifest())
    path = folder / "tokenizer" / "tokenizer.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(EngineCorruptError, match=r"tokenizer\.json: "):
        write_tokenizer_info(folder, [2])


def test_an_engine_of_the_other_backend_can_guide(tmp_path):
    assert can_guide(tmp_path)
