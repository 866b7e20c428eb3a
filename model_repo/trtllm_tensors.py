"""Every tensor that TensorRT-LLM's C++ backend declares, in its order: the contract's and the rest.

The backend looks tensors up by name and Triton refuses a request with an undeclared one, so the GPU model
declares them all, also what `trtb`'s client does not send: other clients may. Source: the configuration
template of TensorRT-LLM's Triton backend (inflight_batcher_llm/tensorrt_llm, 1.x); types that it leaves to
be chosen have the values of NVIDIA's own tests.
"""

from __future__ import annotations

from typing import Final

from trtb.model_repo import contract
from trtb.model_repo.contract import DataType, TensorSpec

ENCODER_FEATURES_TYPE: Final[DataType] = "FP16"
LOGITS_TYPE: Final[DataType] = "FP32"
PROMPT_TABLE_TYPE: Final[DataType] = "FP16"


def _tensor(name: str, data_type: DataType, *dims: int) -> TensorSpec:
    return TensorSpec(name, data_type, dims, scalar=False)


INPUTS: Final[tuple[TensorSpec, ...]] = (
    contract.INPUT_IDS,
    _tensor("encoder_input_features", ENCODER_FEATURES_TYPE, -1, -1),
    TensorSpec("encoder_output_lengths", "INT32"),
    contract.INPUT_LENGTHS,
    contract.REQUEST_OUTPUT_LEN,
    contract.NUM_RETURN_SEQUENCES,
    _tensor("draft_input_ids", "INT32", -1),
    _tensor("decoder_input_ids", "INT32", -1),
    TensorSpec("decoder_input_lengths", "INT32"),
    _tensor("draft_logits", LOGITS_TYPE, -1, -1),
    TensorSpec("draft_acceptance_threshold", "FP32"),
    contract.END_ID,
    contract.PAD_ID,
    contract.STOP_WORDS_LIST,
    _tensor("bad_words_list", "INT32", 2, -1),
    _tensor("embedding_bias", "FP32", -1),
    TensorSpec("beam_width", "INT32"),
    contract.TEMPERATURE,
    contract.TOP_K,
    contract.TOP_P,
    TensorSpec("runtime_top_p_min", "FP32"),
    TensorSpec("runtime_top_p_decay", "FP32"),
    TensorSpec("runtime_top_p_reset_ids", "INT32"),
    TensorSpec("len_penalty", "FP32"),
    TensorSpec("early_stopping", "BOOL"),
    contract.REPETITION_PENALTY,
    contract.MIN_TOKENS,
    TensorSpec("beam_search_diversity_rate", "FP32"),
    contract.PRESENCE_PENALTY,
    contract.FREQUENCY_PENALTY,
    contract.SEED,
    contract.RETURN_LOG_PROBS,
    TensorSpec("return_context_logits", "BOOL"),
    TensorSpec("return_generation_logits", "BOOL"),
    contract.RETURN_PERF_METRICS,
    contract.RETURN_NUM_INPUT_TOKENS,
    contract.RETURN_NUM_OUTPUT_TOKENS,
    contract.EXCLUDE_INPUT_IN_OUTPUT,
    TensorSpec("stop", "BOOL"),
    contract.STREAMING,
    _tensor("prompt_embedding_table", PROMPT_TABLE_TYPE, -1, -1),
    _tensor("prompt_table_extra_ids", "UINT64", -1),
    TensorSpec("prompt_vocab_size", "INT32"),
    _tensor("cross_attention_mask", "BOOL", -1, -1),
    TensorSpec("mrope_rotary_cos_sin", "FP32", (-1,), scalar=False, uniform=True),
    TensorSpec("mrope_position_deltas", "INT64", scalar=False, uniform=True),
    TensorSpec("lora_task_id", "UINT64"),
    _tensor("lora_weights", "FP16", -1, -1),
    _tensor("lora_config", "INT32", -1, 3),
    _tensor("context_phase_params", "UINT8", -1),
    _tensor("skip_cross_attn_blocks", "BOOL", 1),
    contract.RETENTION_TOKEN_RANGE_STARTS,
    contract.RETENTION_TOKEN_RANGE_ENDS,
    contract.RETENTION_TOKEN_RANGE_PRIORITIES,
    _tensor("retention_token_range_durations_ms", "INT32", -1),
    contract.RETENTION_DECODE_PRIORITY,
    _tensor("retention_decode_duration_ms", "INT32", 1),
    contract.GUIDED_DECODING_GUIDE_TYPE,
    contract.GUIDED_DECODING_GUIDE,
    _tensor("lookahead_window_size", "INT32", 1),
    _tensor("lookahead_ngram_size", "INT32", 1),
    _tensor("lookahead_verification_set_size", "INT32", 1),
)

OUTPUTS: Final[tuple[TensorSpec, ...]] = (
    contract.OUTPUT_IDS,
    contract.SEQUENCE_LENGTH,
    contract.CUM_LOG_PROBS,
    contract.OUTPUT_LOG_PROBS,
    _tensor("context_logits", LOGITS_TYPE, -1, -1),
    _tensor("generation_logits", LOGITS_TYPE, -1, -1, -1),
    _tensor("batch_index", "INT32", 1),
    contract.SEQUENCE_INDEX,
    _tensor("context_phase_params", "UINT8", -1),
    contract.KV_CACHE_ALLOC_NEW_BLOCKS,
    contract.KV_CACHE_REUSED_BLOCKS,
    contract.KV_CACHE_ALLOC_TOTAL_BLOCKS,
    contract.ARRIVAL_TIME_NS,
    contract.FIRST_SCHEDULED_TIME_NS,
    contract.FIRST_TOKEN_TIME_NS,
    contract.LAST_TOKEN_TIME_NS,
    _tensor("acceptance_rate", "FP32", 1),
    _tensor("total_accepted_draft_tokens", "INT32", 1),
    _tensor("total_draft_tokens", "INT32", 1),
    contract.NUM_INPUT_TOKENS,
    contract.NUM_OUTPUT_TOKENS,
)
