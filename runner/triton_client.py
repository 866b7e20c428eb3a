"""Triton over gRPC: the only module that knows its messages.

Each worker keeps one ModelStreamInfer stream and sends one request at a time on it, over the raw stub.
tritonclient's own stream helpers drop the request's id from an error, and cannot cancel one request of a
shared stream; one RPC per request costs twice the CPU of a kept stream.

Requests are put together as bytes: in protobuf, the concatenation of two serialised messages is their
merge. What requests of one kind share (the scalars' declarations and values) is serialised once.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from trtb.model_repo import contract
from trtb.runner.errors import (
    CancelledRequestError,
    ConnectionLostError,
    ContractMismatchError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
    RequestError,
    ServerError,
)
from trtb.runner.transport import Chunk, EngineRequest

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # a new client gets a connection of its own
    ("grpc.enable_http_proxy", 0),  # the server is named by the user; a proxy variable is not for it
)
# with this header an error of the model ends the stream with a gRPC status: a code, where the ordinary
# form is a text. The next request opens the stream again.
METADATA = (("triton_grpc_error", "true"),)
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


class TritonTransport:
    """A Triton server that serves the contract's model.

    Must be made inside a running event loop. `endpoint` is host:port, or unix:PATH.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)

    def open_stream(self) -> TritonStream:
        """Return a stream; nothing is sent before its first request."""
        return TritonStream(self._channel)

    async def model_parameters(self, timeout_s: float) -> dict[str, str]:
        """Return the string parameters and max_batch_size of the served model's configuration.

        Raises:
            ServerError: The server does not answer, or serves no such model.
            ContractMismatchError: The model lacks a tensor that the client may send.
        """
        call = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelConfig",
            request_serializer=service_pb2.ModelConfigRequest.SerializeToString,
            response_deserializer=service_pb2.ModelConfigResponse.FromString,
        )
        request = service_pb2.ModelConfigRequest(name=contract.MODEL_NAME)
        try:
            config = (await call(request, timeout=timeout_s, wait_for_ready=True)).config
        except grpc.aio.AioRpcError as exc:
            raise ServerError(
                f"{self.endpoint}: no configuration of model {contract.MODEL_NAME}: {exc.details()}",
                "is a trtb engine served there? start one with: trtb serve",
            ) from exc
        declared = {tensor.name for tensor in config.input}
        missing = [spec.name for spec in contract.INPUTS if spec.name not in declared]
        if missing:
            raise ContractMismatchError(
                f"{self.endpoint}: model {contract.MODEL_NAME} has no input {', '.join(missing)}; "
                "expected the tensors of TensorRT-LLM's tensorrt_llm model, 1.x names"
            )
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        parameters["max_batch_size"] = parameters.get("max_batch_size", str(config.max_batch_size))
        return parameters

    async def close(self) -> None:
        """Close the connection; streams on it are cancelled."""
        await self._channel.close()


class TritonStream:
    """One kept stream, opened when it is first used and again after an error or a cancel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._open: Callable[..., Any] = channel.stream_stream(
            METHOD,
            request_serializer=None,  # requests are put together as bytes
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._call: Any = None
        self._request_id = ""

    async def send(self, request: EngineRequest) -> None:
        """Send a request; see `Stream.send`."""
        if self._call is None:
            self._call = self._open(metadata=METADATA)
        self._request_id = request.request_id
        call = self._call
        try:
            await call.write(serialise(request))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as exc:
            await self._raise_status(call, exc)
        except asyncio.CancelledError:
            self._raise_if_cancelled(call)
            raise

    async def receive(self) -> Chunk:
        """Wait for the next chunk; see `Stream.receive`."""
        call = self._call
        if call is None:
            raise ConnectionLostError("the stream was cancelled")
        while True:
            try:
                message = await call.read()
            except grpc.aio.AioRpcError as exc:
                await self._raise_status(call, exc)
            except asyncio.CancelledError:
                self._raise_if_cancelled(call)
                raise
            if message is grpc.aio.EOF:
                await self._raise_status(call, None)
            if message.error_message:
                self.cancel()
                raise EngineError(message.error_message)
            response = message.infer_response
            if response.id == self._request_id:
                return read_chunk(response)

    def cancel(self) -> None:
        """Give the request up; see `Stream.cancel`."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _raise_if_cancelled(self, call: Any) -> None:
        """Tell a cancel of the call from a cancel of the task that waits for it."""
        if call is not self._call:
            raise ConnectionLostError("the stream was cancelled") from None

    async def _raise_status(self, call: Any, cause: BaseException | None) -> None:
        if call is self._call:
            self._call = None
        is_connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        raise error_of_status(await call.code(), await call.details() or "", is_connected) from cause


def error_of_status(code: grpc.StatusCode, details: str, is_connected: bool) -> RequestError:
    """Translate a gRPC status to an error of ours.

    UNAVAILABLE has two meanings: over a connection that stands it is the server's own answer, no room;
    otherwise it is the library's, no server.
    """
    if code is grpc.StatusCode.UNAVAILABLE and is_connected:
        return QueueFullError(details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND):
        # OK: the server closed the stream; NOT_FOUND: it is shutting down, or has not loaded the model
        return ConnectionLostError(details or "the server closed the stream")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequestError(details)
    if code is grpc.StatusCode.CANCELLED:
        return CancelledRequestError(details or "the server cancelled the request")
    return EngineError(details)


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
