"""Triton over gRPC: streams, and what a server says of itself and of a failure.

Each worker keeps one ModelStreamInfer stream and sends one request at a time on it, over the raw stub.
tritonclient's own stream helpers drop the request's id from an error, and cannot cancel one request of a
shared stream; one RPC per request costs twice the CPU of a kept stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
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
from trtb.runner.triton_messages import read_chunk, serialise

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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server tells of its model: the string parameters, with max_batch_size, and the inputs' names."""

    parameters: dict[str, str]
    inputs: frozenset[str]

    @property
    def can_retain(self) -> bool:
        """Say whether requests may tell which of their KV blocks the engine should keep."""
        return all(spec.name in self.inputs for spec in contract.RETENTION_INPUTS)


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

    async def served_model(self, timeout_s: float) -> ServedModel:
        """Return what the served model's configuration says.

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
        declared = frozenset(tensor.name for tensor in config.input)
        missing = [spec.name for spec in contract.INPUTS if spec.name not in declared]
        if missing:
            raise ContractMismatchError(
                f"{self.endpoint}: model {contract.MODEL_NAME} has no input {', '.join(missing)}; "
                "expected the tensors of TensorRT-LLM's tensorrt_llm model, 1.x names"
            )
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        parameters["max_batch_size"] = parameters.get("max_batch_size", str(config.max_batch_size))
        return ServedModel(parameters, declared)

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
        is_opening = self._call is None
        if is_opening:
            self._call = self._open(metadata=METADATA)
        self._request_id = request.request_id
        call = self._call
        try:
            await (_write_first(call, serialise(request)) if is_opening else call.write(serialise(request)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as exc:
            self._raise_if_cancelled(call)
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


async def _write_first(call: Any, data: bytes) -> None:
    """Write the first message of a call, or end with the call.

    grpc's own write waits for the call to stand, for ever where it is cancelled before that.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
    write = asyncio.ensure_future(call.write(data))
    try:
        await asyncio.wait((write, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not write.done():
            write.cancel()
            await asyncio.gather(write, return_exceptions=True)
    if write.cancelled():
        raise asyncio.InvalidStateError("the call ended before it stood")
    write.result()


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
