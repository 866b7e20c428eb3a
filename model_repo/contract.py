"""The wire contract: the tensors of TensorRT-LLM's `tensorrt_llm` model, token ids in, token ids out.

Both backends serve a model of this name with these tensors, so that the client is one program and a test
of it on a CPU is a test of it on a GPU. Every reader and writer of a tensor takes its name, type and rank
from here. Source of names, types and dims: the configuration template of TensorRT-LLM's Triton backend
(inflight_batcher_llm/tensorrt_llm, 1.x); a golden test holds this table against that declaration.

Every tensor carries a leading batch dimension of 1 on the wire, so a scalar has the shape [1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MODEL_NAME = "tensorrt_llm"
MODEL_VERSION = "1"
KV_DTYPE_PARAMETER = "kv_cache_dtype"  # of the openvino model: "auto" is the type of its arithmetic
KV_REUSE_PARAMETER = "enable_kv_cache_reuse"  # of both models: "true" where shared prefixes are computed once

DataType = Literal["BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "STRING"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: `dims` without the batch dimension; a scalar is [1], reshaped to [] for the model."""

    name: str
    data_type: DataType
    dims: tuple[int, ...] = (1,)
    optional: bool = True
    scalar: bool = True
    uniform: bool = False  # no scalar, and yet requests that share a batch have it in one shape

    @property
    def ragged(self) -> bool:
        """Say whether requests of different lengths may share a batch without padding (inputs only)."""
        return not (self.scalar or self.uniform)


def _ids(name: str, *dims: int) -> TensorSpec:
    return TensorSpec(name, "INT32", dims, scalar=False)


INPUT_IDS = _ids("input_ids", -1)
INPUT_LENGTHS = TensorSpec("input_lengths", "INT32", optional=False)
REQUEST_OUTPUT_LEN = TensorSpec("request_output_len", "INT32", optional=False)
NUM_RETURN_SEQUENCES = TensorSpec("num_return_sequences", "INT32")
END_ID = TensorSpec("end_id", "INT32")
PAD_ID = TensorSpec("pad_id", "INT32")
# row 0: the words' ids, one after the other; row 1: the end offset of each word, padded with -1
STOP_WORDS_LIST = _ids("stop_words_list", 2, -1)
TEMPERATURE = TensorSpec("temperature", "FP32")
TOP_K = TensorSpec("runtime_top_k", "INT32")
TOP_P = TensorSpec("runtime_top_p", "FP32")
REPETITION_PENALTY = TensorSpec("repetition_penalty", "FP32")
PRESENCE_PENALTY = TensorSpec("presence_penalty", "FP32")
FREQUENCY_PENALTY = TensorSpec("frequency_penalty", "FP32")
MIN_TOKENS = TensorSpec("min_tokens", "INT32")
SEED = TensorSpec("seed", "UINT64")
RETURN_LOG_PROBS = TensorSpec("return_log_probs", "BOOL")
RETURN_PERF_METRICS = TensorSpec("return_perf_metrics", "BOOL")
RETURN_NUM_INPUT_TOKENS = TensorSpec("return_num_input_tokens", "BOOL")
RETURN_NUM_OUTPUT_TOKENS = TensorSpec("return_num_output_tokens", "BOOL")
STREAMING = TensorSpec("streaming", "BOOL")
EXCLUDE_INPUT_IN_OUTPUT = TensorSpec("exclude_input_in_output", "BOOL")
GUIDED_DECODING_GUIDE_TYPE = TensorSpec("guided_decoding_guide_type", "STRING", scalar=False)
GUIDED_DECODING_GUIDE = TensorSpec("guided_decoding_guide", "STRING", scalar=False)

INPUTS: tuple[TensorSpec, ...] = (
    INPUT_IDS,
    INPUT_LENGTHS,
    REQUEST_OUTPUT_LEN,
    NUM_RETURN_SEQUENCES,
    END_ID,
    PAD_ID,
    STOP_WORDS_LIST,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    MIN_TOKENS,
    SEED,
    RETURN_LOG_PROBS,
    RETURN_PERF_METRICS,
    RETURN_NUM_INPUT_TOKENS,
    RETURN_NUM_OUTPUT_TOKENS,
    STREAMING,
    EXCLUDE_INPUT_IN_OUTPUT,
    GUIDED_DECODING_GUIDE_TYPE,
    GUIDED_DECODING_GUIDE,
)

# how long the engine keeps a request's blocks for others: TensorRT-LLM's alone. Ranges of prompt tokens and
# their priorities, all of one length; they come together, the durations may be left out
RETENTION_TOKEN_RANGE_STARTS = _ids("retention_token_range_starts", -1)
RETENTION_TOKEN_RANGE_ENDS = _ids("retention_token_range_ends", -1)
RETENTION_TOKEN_RANGE_PRIORITIES = _ids("retention_token_range_priorities", -1)
RETENTION_DECODE_PRIORITY = _ids("retention_decode_priority", 1)

RETENTION_INPUTS: tuple[TensorSpec, ...] = (
    RETENTION_TOKEN_RANGE_STARTS,
    RETENTION_TOKEN_RANGE_ENDS,
    RETENTION_TOKEN_RANGE_PRIORITIES,
    RETENTION_DECODE_PRIORITY,
)

OUTPUT_IDS = TensorSpec("output_ids", "INT32", (-1, -1), scalar=False)  # [1, num_sequences, length]
SEQUENCE_LENGTH = TensorSpec("sequence_length", "INT32", (-1,), scalar=False)  # [1, num_sequences]
CUM_LOG_PROBS = TensorSpec("cum_log_probs", "FP32", (-1,), scalar=False)
OUTPUT_LOG_PROBS = TensorSpec("output_log_probs", "FP32", (-1, -1), scalar=False)
SEQUENCE_INDEX = TensorSpec("sequence_index", "INT32", scalar=False)
KV_CACHE_ALLOC_NEW_BLOCKS = TensorSpec("kv_cache_alloc_new_blocks", "INT32", scalar=False)
KV_CACHE_REUSED_BLOCKS = TensorSpec("kv_cache_reused_blocks", "INT32", scalar=False)
KV_CACHE_ALLOC_TOTAL_BLOCKS = TensorSpec("kv_cache_alloc_total_blocks", "INT32", scalar=False)
ARRIVAL_TIME_NS = TensorSpec("arrival_time_ns", "INT64", scalar=False)
FIRST_SCHEDULED_TIME_NS = TensorSpec("first_scheduled_time_ns", "INT64", scalar=False)
FIRST_TOKEN_TIME_NS = TensorSpec("first_token_time_ns", "INT64", scalar=False)
LAST_TOKEN_TIME_NS = TensorSpec("last_token_time_ns", "INT64", scalar=False)
NUM_INPUT_TOKENS = TensorSpec("num_input_tokens", "INT32", scalar=False)
NUM_OUTPUT_TOKENS = TensorSpec("num_output_tokens", "INT32", scalar=False)

OUTPUTS: tuple[TensorSpec, ...] = (
    OUTPUT_IDS,
    SEQUENCE_LENGTH,
    CUM_LOG_PROBS,
    OUTPUT_LOG_PROBS,
    SEQUENCE_INDEX,
    KV_CACHE_ALLOC_NEW_BLOCKS,
    KV_CACHE_REUSED_BLOCKS,
    KV_CACHE_ALLOC_TOTAL_BLOCKS,
    ARRIVAL_TIME_NS,
    FIRST_SCHEDULED_TIME_NS,
    FIRST_TOKEN_TIME_NS,
    LAST_TOKEN_TIME_NS,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
)


def pack_stop_words(words: list[list[int]]) -> tuple[list[int], list[int]]:
    """Return the two rows of `stop_words_list`.

    >>> pack_stop_words([[7, 8], [9]])
    ([7, 8, 9], [2, 3, -1])
    """
    ids = [token for word in words for token in word]
    ends: list[int] = []
    for word in words:
        ends.append((ends[-1] if ends else 0) + len(word))
    return ids, ends + [-1] * (len(ids) - len(ends))


def unpack_stop_words(ids: list[int], ends: list[int]) -> list[list[int]]:
    """Return the words of `stop_words_list`'s two rows.

    >>> unpack_stop_words([7, 8, 9], [2, 3, -1])
    [[7, 8], [9]]
    """
    words = []
    start = 0
    for end in ends:
        if end <= start:
            break
        words.append(ids[start:end])
        start = end
    return words
