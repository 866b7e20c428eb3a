"""The parameters of TensorRT-LLM's backend: all of them, typed, and read back as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtb.build.errors import ConfigError
from trtb.model_repo.trtllm_parameters import (
    REFUSED,
    TrtllmDeployConfig,
    allowed_values,
    parameter_of,
    parse_parameters,
    to_parameters,
)

DECLARED = json.loads((Path(__file__).parents[1] / "data" / "tensorrt_llm_tensors.json").read_text())
FIELDS = TrtllmDeployConfig.model_fields
# read by the backend, and not in its template; the second was once a name of executor_worker_path
BESIDE_THE_TEMPLATE = {"recv_poll_period_ms", "worker_path", "max_queue_size"}


def test_every_parameter_of_the_template_is_a_field_or_refused_by_name():
    assert FIELDS.keys() | REFUSED.keys() == set(DECLARED["parameters"]) | BESIDE_THE_TEMPLATE
    assert not FIELDS.keys() & REFUSED.keys()


def test_every_field_says_what_it_means():
    meanings = [parameter_of(field).meaning for field in FIELDS.values()]
    assert all(meanings)
    assert len(set(meanings)) == len(meanings)


def test_the_defaults_are_those_that_trtb_chose_and_the_rest_is_left_out():
    assert to_parameters(TrtllmDeployConfig()) == {
        "gpt_model_type": "inflight_fused_batching",
        "max_beam_width": "1",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "exclude_input_in_output": "true",
        "kv_cache_free_gpu_mem_fraction": "0.9",
        "guided_decoding_backend": "auto",
    }


@pytest.mark.parametrize(
    ("name", "text", "value", "written"),
    [
        ("kv_cache_free_gpu_mem_fraction", " 0.85 ", 0.85, "0.85"),
        ("max_tokens_in_paged_kv_cache", "65536", 65536, "65536"),
        ("kv_cache_host_memory_bytes", "68719476736", 2**36, "68719476736"),
        ("enable_kv_cache_reuse", "False", False, "false"),
        ("enable_chunked_context", "1", True, "true"),
        ("batch_scheduler_policy", "max_utilization", "max_utilization", "max_utilization"),
        ("gpu_device_ids", "0,1;2,3", ((0, 1), (2, 3)), "0,1;2,3"),
        ("gpu_device_ids", "3", ((3,),), "3"),
        ("max_attention_window_size", "4096, 8192", (4096, 8192), "4096,8192"),
        ("medusa_choices", "{0}, {0, 0}, {1}", ((0,), (0, 0), (1,)), "{0}, {0, 0}, {1}"),
        ("gpu_weights_percent", "0", 0.0, "0.0"),
        ("lora_prefetch_dir", "/adapters", "/adapters", "/adapters"),
    ],
)
def test_a_value_is_read_and_written_as_the_backend_reads_it(name, text, value, written):
    config = parse_parameters({name: text})
    assert getattr(config, name) == value
    assert to_parameters(config)[name] == written


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("kv_cache_free_gpu_mem_fraction", "90%", "'90%'; expected a number"),
        ("kv_cache_free_gpu_mem_fraction", "1", "expected less than 1"),
        ("kv_cache_free_gpu_mem_fraction", "0", "greater than 0"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "expected less than 1"),
        ("max_tokens_in_paged_kv_cache", "0", "greater than or equal to 1"),
        ("max_tokens_in_paged_kv_cache", "2147483648", "less than or equal to 2147483647"),
        ("max_tokens_in_paged_kv_cache", "8k", "'8k'; expected whole numbers"),
        ("enable_kv_cache_reuse", "yes", "'yes'; expected true or false"),
        ("batch_scheduler_policy", "fair", "expected guaranteed_no_evict or max_utilization"),
        ("gpt_model_type", "V1", "expected inflight_fused_batching or inflight_batching"),
        ("gpu_device_ids", "0,1;", "expected groups such as 0,1;2,3"),
        ("medusa_choices", "{}", "expected groups such as {0}, {0, 1}"),
        ("sink_token_length", "0", "greater than or equal to 1"),
        ("lora_prefetch_dir", "", "at least 1 character"),
    ],
)
def test_a_value_that_the_backend_would_drop_or_choke_on_is_refused(name, text, said):
    with pytest.raises(ConfigError, match=r"parameter ") as caught:
        parse_parameters({name: text})
    assert caught.value.message.startswith(f"parameter {name}: ")
    assert said in caught.value.message


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(ConfigError, match="no such parameter") as caught:
        parse_parameters({"kv_cache_free_gpu_memory_fraction": "0.9"})
    assert "kv_cache_free_gpu_mem_fraction" in caught.value.hint


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_persons_to_set_is_refused_with_the_reason(name):
    with pytest.raises(ConfigError, match=f"parameter {name}: not an option") as caught:
        parse_parameters({name: "1"})
    assert caught.value.hint == REFUSED[name]


def test_words_are_told_where_a_parameter_takes_words():
    assert allowed_values(FIELDS["enable_kv_cache_reuse"]) == ("true", "false")
    assert "eagle" in allowed_values(FIELDS["decoding_mode"])
    assert allowed_values(FIELDS["max_beam_width"]) == ()
