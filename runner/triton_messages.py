"""Triton's messages of a request and its answer.

Requests are put together as bytes: in protobuf, the concatenation of two serialised messages is their
merge. What requests of one kind share (the scalars' declarations and values) is serialised once.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from trtb.model_repo import contract
from trtb.runner.transport import Chunk, EngineRequest, Retention

STRUCT_FORMATS = {"BOOL": "<?", "INT32": "<i", "INT64": "<q", "UINT64": "<Q", "FP32": "<f"}
_ID = service_pb2.ModelInferRequest.ID_FIELD_NUMBER
_RAW_CONTENTS = service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
OUTPUTS_READ: tuple[contract.TensorSpec, ...] = (
    contract.OUTPUT_IDS,
    contract.ARRIVAL_TIME_NS,
    contract.FIRST_TOKEN_TIME_NS,
    contract.KV_CACHE_REUSED_BLOCKS,  # TensorRT-LLM's; the CPU engine does not count them
)
OUTPUTS_OF_SEVERAL = (contract.SEQUENCE_INDEX,)
OUTPUTS_OF_LOG_PROBS = (contract.OUTPUT_LOG_PROBS,)
OUTPUTS_OF_BLOCKS = (contract.KV_CACHE_ALLOC_NEW_BLOCKS, contract.KV_CACHE_ALLOC_TOTAL_BLOCKS)


def read_chunk(response: Any) -> Chunk:
    """Read a response's output ids and times; tensors come as raw little-endian bytes, in order."""
    ids: list[int] = []
    log_probs: tuple[float, ...] = ()
    arrival_ns = first_token_ns = sequence = 0
    blocks: dict[str, int] = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if tensor.name == contract.OUTPUT_IDS.name:
            ids = np.frombuffer(raw, dtype="<i4").tolist()
        elif tensor.name == contract.ARRIVAL_TIME_NS.name:
            arrival_ns = int.from_bytes(raw, "little")
        elif tensor.name == contract.FIRST_TOKEN_TIME_NS.name:
            first_token_ns = int.from_bytes(raw, "little")
        elif tensor.name == contract.SEQUENCE_INDEX.name:
            sequence = int.from_bytes(raw, "little")
        elif tensor.name == contract.OUTPUT_LOG_PROBS.name:
            log_probs = tuple(np.frombuffer(raw, dtype="<f4").tolist())
        else:
            blocks[tensor.name] = int.from_bytes(raw, "little")
    is_final = response.parameters["triton_final_response"].bool_param
    counts = (blocks.get(spec.name) for spec in (contract.KV_CACHE_REUSED_BLOCKS, *OUTPUTS_OF_BLOCKS))
    return Chunk(ids, is_final, sequence, log_probs, arrival_ns, first_token_ns, *counts)


def serialise(request: EngineRequest) -> bytes:
    """Return the serialised ModelInferRequest of an attempt."""
    num_ids = len(request.input_ids)
    declared, lengths = _serialise_prompt_shape(num_ids)
    ids = struct.pack(f"<{num_ids}i", *request.input_ids)
    shared = _serialise_shared(
        request.max_tokens,
        request.end_id,
        request.pad_id,
        request.stop_words,
        request.temperature,
        request.top_k,
        request.top_p,
        request.repetition_penalty,
        request.presence_penalty,
        request.frequency_penalty,
        request.min_tokens,
        request.streaming,
        request.num_sequences,
        request.log_probs,
        request.guide,
    )
    parts = [_field(_ID, request.request_id.encode()), declared, _field(_RAW_CONTENTS, ids), lengths, shared]
    if request.seed is not None:
        tail = service_pb2.ModelInferRequest()
        _add(tail, contract.SEED, request.seed)
        parts.append(tail.SerializeToString())
    if request.block_counts:
        more = service_pb2.ModelInferRequest()
        for spec in OUTPUTS_OF_BLOCKS:
            more.outputs.add(name=spec.name)
        parts.append(more.SerializeToString())
    if request.retention is not None:
        parts.append(_serialise_retention(request.retention))
    return b"".join(parts)


def _field(number: int, payload: bytes) -> bytes:
    """Return a protobuf field of bytes or text: its tag, its length as a varint, and the bytes."""
    head = bytearray((number << 3 | 2,))
    left = len(payload)
    while left > 0x7F:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    head.append(left)
    return bytes(head) + payload


@functools.lru_cache(maxsize=4096)
def _serialise_prompt_shape(num_ids: int) -> tuple[bytes, bytes]:
    """Return what belongs before and after the ids of a prompt of that length."""
    declared = service_pb2.ModelInferRequest()
    declared.inputs.add(name=contract.INPUT_IDS.name, datatype="INT32", shape=(1, num_ids))
    declared.inputs.add(name=contract.INPUT_LENGTHS.name, datatype="INT32", shape=(1, 1))
    lengths = service_pb2.ModelInferRequest(raw_input_contents=[struct.pack("<i", num_ids)])
    return declared.SerializeToString(), lengths.SerializeToString()


@functools.lru_cache(maxsize=4096)
def _serialise_retention(retention: Retention) -> bytes:
    """Return the inputs that say how long the blocks should stay; without durations, for good."""
    part = service_pb2.ModelInferRequest()
    starts, ends, priorities = zip(*retention.ranges, strict=True)
    for spec, values in (
        (contract.RETENTION_TOKEN_RANGE_STARTS, starts),
        (contract.RETENTION_TOKEN_RANGE_ENDS, ends),
        (contract.RETENTION_TOKEN_RANGE_PRIORITIES, priorities),
        (contract.RETENTION_DECODE_PRIORITY, (retention.decode_priority,)),
    ):
        part.inputs.add(name=spec.name, datatype=spec.data_type, shape=(1, len(values)))
        part.raw_input_contents.append(struct.pack(f"<{len(values)}i", *values))
    return part.SerializeToString()  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256)
def _serialise_shared(
    max_tokens: int,
    end_id: int,
    pad_id: int,
    stop_words: tuple[tuple[int, ...], ...],
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    min_tokens: int,
    streaming: bool,
    num_sequences: int,
    log_probs: bool,
    guide: tuple[str, str] | None,
) -> bytes:
    """Serialise everything but the prompt, the id and the seed; values at their neutral setting stay out."""
    part = service_pb2.ModelInferRequest(model_name=contract.MODEL_NAME)
    part.parameters["triton_enable_empty_final_response"].bool_param = True
    wanted = OUTPUTS_READ
    if num_sequences > 1:
        wanted += OUTPUTS_OF_SEVERAL
        _add(part, contract.NUM_RETURN_SEQUENCES, num_sequences)
    if log_probs:
        wanted += OUTPUTS_OF_LOG_PROBS
        _add(part, contract.RETURN_LOG_PROBS, True)
    for spec in wanted:
        part.outputs.add(name=spec.name)
    _add(part, contract.REQUEST_OUTPUT_LEN, max_tokens)
    _add(part, contract.END_ID, end_id)
    _add(part, contract.PAD_ID, pad_id)
    _add(part, contract.STREAMING, streaming)
    _add(part, contract.EXCLUDE_INPUT_IN_OUTPUT, True)
    _add(part, contract.RETURN_PERF_METRICS, True)
    settings: tuple[tuple[contract.TensorSpec, float, float], ...] = (
        (contract.TOP_K, top_k, 0),
        (contract.TEMPERATURE, temperature, 1.0),
        (contract.TOP_P, top_p, 1.0),
        (contract.REPETITION_PENALTY, repetition_penalty, 1.0),
        (contract.PRESENCE_PENALTY, presence_penalty, 0.0),
        (contract.FREQUENCY_PENALTY, frequency_penalty, 0.0),
        (contract.MIN_TOKENS, min_tokens, 0),
    )
    for spec, value, neutral in settings:
        if value != neutral:
            _add(part, spec, value)
    if guide is not None:
        _add_text(part, contract.GUIDED_DECODING_GUIDE_TYPE, guide[0])
        _add_text(part, contract.GUIDED_DECODING_GUIDE, guide[1])
    if stop_words:
        ids, ends = contract.pack_stop_words([list(word) for word in stop_words])
        part.inputs.add(name=contract.STOP_WORDS_LIST.name, datatype="INT32", shape=(1, 2, len(ids)))
        part.raw_input_contents.append(np.array([ids, ends], dtype="<i4").tobytes())
    return part.SerializeToString()  # type: ignore[no-any-return]


def _add(message: Any, spec: contract.TensorSpec, value: float) -> None:
    """Add a scalar input with its batch dimension."""
    message.inputs.add(name=spec.name, datatype=spec.data_type, shape=(1, 1))
    message.raw_input_contents.append(struct.pack(STRUCT_FORMATS[spec.data_type], value))


def _add_text(message: Any, spec: contract.TensorSpec, value: str) -> None:
    """Add a text input: its bytes, after their number."""
    data = value.encode()
    message.inputs.add(name=spec.name, datatype="BYTES", shape=(1, 1))
    message.raw_input_contents.append(struct.pack("<I", len(data)) + data)
