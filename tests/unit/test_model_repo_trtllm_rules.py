"""What parameters demand of each other and of the engine: each rule, and an engine that keeps it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtb.build.errors import ConfigError
from trtb.model_repo.trtllm_engine import TrtllmEngine
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig, parse_parameters
from trtb.model_repo.trtllm_rules import resolve

ENGINE = TrtllmEngine(
    version="1.2.1",
    world_size=2,
    max_seq_len=8192,
    max_batch_size=256,
    max_num_tokens=8192,
    max_beam_width=1,
    tokens_per_block=32,
    is_paged=True,
    has_paged_context=True,
    can_stream_weights=False,
    has_lora=False,
    drafting_mode=None,
    has_tokenizer_info=False,
)


def test_open_choices_follow_the_engine():
    resolved = resolve(TrtllmDeployConfig(), ENGINE)
    assert (resolved.enable_kv_cache_reuse, resolved.enable_chunked_context) == (True, True)
    assert resolved.guided_decoding_backend == "off"
    plain = resolve(TrtllmDeployConfig(), replace(ENGINE, has_paged_context=False, has_tokenizer_info=True))
    assert (plain.enable_kv_cache_reuse, plain.enable_chunked_context) == (False, False)
    assert plain.guided_decoding_backend == "xgrammar"


def test_a_choice_that_was_made_is_kept():
    asked = TrtllmDeployConfig(
        enable_kv_cache_reuse=False, enable_chunked_context=False, guided_decoding_backend="off"
    )
    assert resolve(asked, replace(ENGINE, has_tokenizer_info=True)) == asked


LOOKAHEAD = {
    "lookahead_window_size": "8", "lookahead_ngram_size": "6", "lookahead_verification_set_size": "8",
}  # fmt: skip

# parameters, the engine that keeps the rule and, of it, what breaks it, and the words
RULES = [
    ({"enable_kv_cache_reuse": "true"}, {}, {"has_paged_context": False}, "use_paged_context_fmha"),
    ({"enable_chunked_context": "true"}, {}, {"has_paged_context": False}, "use_paged_context_fmha"),
    ({}, {}, {"is_paged": False}, "a paged KV cache and packed requests"),
    (
        {"max_tokens_in_paged_kv_cache": "8192"}, {}, {"max_seq_len": 8193},
        "max_tokens_in_paged_kv_cache: 8192; expected at least 8193",
    ),
    ({"max_beam_width": "2"}, {"max_beam_width": 2}, {"max_beam_width": 1}, "expected at most 1"),
    ({"gpu_device_ids": "0,1;2,3"}, {}, {"world_size": 4}, "expected 4 in each group"),
    ({"participant_ids": "1,2"}, {}, {"world_size": 1}, "expected 1 in each group"),
    ({"gpu_weights_percent": "0.5"}, {"can_stream_weights": True}, {"can_stream_weights": False}, "1: the"),
    ({"lora_cache_max_adapter_size": "8"}, {"has_lora": True}, {"has_lora": False}, "without lora_plugin"),
    ({"lora_prefetch_dir": "/a"}, {"has_lora": True}, {"has_lora": False}, "without lora_plugin"),
    ({"decoding_mode": "medusa"}, {"drafting_mode": "medusa"}, {"drafting_mode": None}, "expected no drafts"),
    ({"decoding_mode": "eagle"}, {"drafting_mode": "eagle"}, {"drafting_mode": "medusa"}, "expected medusa"),
    (
        {"decoding_mode": "lookahead", **LOOKAHEAD}, {"drafting_mode": "lookahead"}, {"drafting_mode": None},
        "expected no drafts",
    ),
    ({"decoding_mode": "top_k"}, {}, {"drafting_mode": "redrafter"}, "expected redrafter"),
    (
        {"guided_decoding_backend": "xgrammar"}, {"has_tokenizer_info": True}, {"has_tokenizer_info": False},
        "expected off: the engine holds no vocabulary",
    ),
    ({"sink_token_length": "4"}, {}, {"max_seq_len": 4}, "less than the engine's max_seq_len, 4"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "kept", "broken", "said"), RULES)
def test_what_the_engine_must_be_built_for(given, kept, broken, said):
    config = parse_parameters(given)
    resolve(config, replace(ENGINE, **kept))
    with pytest.raises(ConfigError, match="parameter ") as caught:
        resolve(config, replace(replace(ENGINE, **kept), **broken))
    assert said in caught.value.message


# parameters that agree, and what makes them contradict each other
PAIRS = [
    (
        {"kv_cache_host_memory_bytes": "1000"},
        {"enable_kv_cache_reuse": "false"},
        "kv_cache_host_memory_bytes: 1000; expected 0 without enable_kv_cache_reuse",
    ),
    (
        {"kv_cache_host_memory_bytes": "1000", "kv_cache_onboard_blocks": "false"},
        {"kv_cache_host_memory_bytes": "0"},
        "kv_cache_onboard_blocks: false; expected nothing without",
    ),
    (
        {"gpu_device_ids": "0,1;0,1", "max_tokens_in_paged_kv_cache": "9000"},
        {"max_tokens_in_paged_kv_cache": None},
        "not set; expected a number: several instances would each fill GPU 0, 1",
    ),
    ({"gpu_device_ids": "0,1"}, {"gpu_device_ids": "0,0"}, "at most once in a group"),
    ({"gpu_device_ids": "0,1"}, {"participant_ids": "0,1;2,3"}, "expected 1 groups"),
    ({"cuda_graph_mode": "true", "cuda_graph_cache_size": "8"}, {"cuda_graph_mode": "false"}, "cuda_graph_c"),
    ({"max_beam_width": "2", "decoding_mode": "beam_search"}, {"decoding_mode": "top_k"}, "beam_search with"),
    ({"max_beam_width": "2", "decoding_mode": "beam_search"}, {"max_beam_width": "1"}, "beam_search with"),
    ({}, {"medusa_choices": "{0}"}, "nothing without decoding_mode medusa"),
    ({}, {"eagle_choices": "{0}"}, "nothing without decoding_mode eagle"),
    ({}, {"lookahead_window_size": "8"}, "with decoding_mode lookahead, and only then"),
]


@pytest.mark.parametrize(("given", "change", "said"), PAIRS)
def test_what_parameters_demand_of_each_other(given, change, said):
    engine = replace(ENGINE, max_beam_width=4)
    resolve(parse_parameters(given), engine)
    changed = {name: text for name, text in {**given, **change}.items() if text is not None}
    with pytest.raises(ConfigError) as caught:
        resolve(parse_parameters(changed), engine)
    assert said in caught.value.message


def test_every_fault_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        resolve(parse_parameters({"max_beam_width": "3", "lora_prefetch_dir": "/a"}), ENGINE)
    assert len(caught.value.message.splitlines()) == 2
