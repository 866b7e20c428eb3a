"""Triton's messages: what is sent says what was asked, and every answer is read for what it is."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from typing import Any

import grpc
import pytest
from fakes.triton import FakeTriton, response
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from trtb.model_repo import contract
from trtb.runner.errors import (
    CancelledRequestError,
    ConnectionLostError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
)
from trtb.runner.transport import EngineRequest, Retention
from trtb.runner.triton_client import TritonTransport, error_of_status
from trtb.runner.triton_messages import serialise

FORMATS = {"BOOL": "?", "INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f"}
BY_NAME = {spec.name: spec for spec in contract.INPUTS}
CODES = grpc.StatusCode

requests = st.builds(
    EngineRequest,
    request_id=st.text("abc-0123456789", min_size=1, max_size=300),
    input_ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300),
    max_tokens=st.integers(1, 2**31 - 1),
    end_id=st.integers(0, 50000),
    pad_id=st.integers(0, 50000),
    stop_words=st.lists(st.lists(st.integers(0, 50000), min_size=1, max_size=4).map(tuple), max_size=3).map(
        tuple
    ),
    temperature=st.floats(0.015625, 2, width=32),
    top_k=st.integers(0, 100),
    top_p=st.floats(0.015625, 1, width=32),
    repetition_penalty=st.floats(0.125, 4, width=32),
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    min_tokens=st.integers(0, 100),
    seed=st.none() | st.integers(0, 2**63 - 1),
    streaming=st.booleans(),
)


def read(data: bytes) -> tuple[Any, dict[str, Any]]:
    """Return a message and its inputs by name, as a server reads them."""
    message = service_pb2.ModelInferRequest.FromString(data)
    values: dict[str, Any] = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        spec = BY_NAME[tensor.name]
        assert tensor.name not in values
        assert tensor.datatype == spec.data_type
        count = len(raw) // struct.calcsize(FORMATS[spec.data_type])
        numbers = list(struct.unpack(f"<{count}{FORMATS[spec.data_type]}", raw))
        shape = list(tensor.shape)
        assert shape[0] == 1
        assert len(shape) == 1 + len(spec.dims)
        expected = 1
        for size in shape:
            expected *= size
        assert count == expected
        values[tensor.name] = numbers[0] if spec.scalar else numbers
    return message, values


def test_what_the_engine_should_keep_is_four_tensors_and_none_where_nothing_is_said():
    plain = EngineRequest("r-1", [5, 6, 7, 8], max_tokens=9, end_id=2, pad_id=3)
    told = replace(plain, retention=Retention(((0, 3, 80), (3, 4, 10)), 15))
    message = service_pb2.ModelInferRequest.FromString(serialise(told))
    names = {spec.name for spec in contract.RETENTION_INPUTS}
    sent = {
        tensor.name: (tensor.datatype, list(tensor.shape), struct.unpack(f"<{len(raw) // 4}i", raw))
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
        if tensor.name in names
    }
    assert sent == {
        "retention_token_range_starts": ("INT32", [1, 2], (0, 3)),
        "retention_token_range_ends": ("INT32", [1, 2], (3, 4)),
        "retention_token_range_priorities": ("INT32", [1, 2], (80, 10)),
        "retention_decode_priority": ("INT32", [1, 1], (15,)),
    }
    assert serialise(told).startswith(serialise(plain))


@given(requests)
def test_a_message_says_what_was_asked_and_leaves_out_what_is_neutral(request):
    message, values = read(serialise(request))
    assert message.id == request.request_id
    assert message.model_name == contract.MODEL_NAME
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    words = values.pop("stop_words_list", [])
    half = len(words) // 2
    assert contract.unpack_stop_words(words[:half], words[half:]) == [
        list(word) for word in request.stop_words
    ]
    expected = {
        "input_ids": request.input_ids,
        "input_lengths": len(request.input_ids),
        "request_output_len": request.max_tokens,
        "end_id": request.end_id,
        "pad_id": request.pad_id,
        "streaming": request.streaming,
        "exclude_input_in_output": True,
        "return_perf_metrics": True,
        "runtime_top_k": request.top_k or None,
        "temperature": None if request.temperature == 1 else request.temperature,
        "runtime_top_p": None if request.top_p == 1 else request.top_p,
        "repetition_penalty": None if request.repetition_penalty == 1 else request.repetition_penalty,
        "presence_penalty": request.presence_penalty or None,
        "frequency_penalty": request.frequency_penalty or None,
        "min_tokens": request.min_tokens or None,
        "seed": request.seed,
    }
    assert values == {name: value for name, value in expected.items() if value is not None}
    required = {spec.name for spec in contract.INPUTS if not spec.optional}
    assert required <= set(values)


@pytest.mark.parametrize(
    ("code", "is_connected", "kind"),
    [
        (CODES.UNAVAILABLE, True, QueueFullError),
        (CODES.UNAVAILABLE, False, ConnectionLostError),
        (CODES.OK, True, ConnectionLostError),
        (CODES.NOT_FOUND, True, ConnectionLostError),
        (CODES.INVALID_ARGUMENT, True, InvalidRequestError),
        (CODES.CANCELLED, True, CancelledRequestError),
        (CODES.INTERNAL, True, EngineError),
        (CODES.UNKNOWN, False, EngineError),
        (CODES.RESOURCE_EXHAUSTED, True, EngineError),
    ],
)
def test_a_status_is_translated_by_its_code(code, is_connected, kind):
    error = error_of_status(code, "what the server says", is_connected)
    assert type(error) is kind
    assert error.message == "what the server says"


def play(respond, scenario) -> FakeTriton:
    fake = FakeTriton(respond)

    async def main() -> None:
        async with fake.serving() as endpoint:
            transport = TritonTransport(endpoint)
            try:
                await asyncio.wait_for(scenario(transport), 20)
            finally:
                await transport.close()

    asyncio.run(main())
    return fake


def asked(name: str) -> EngineRequest:
    return EngineRequest(name, [1, 2, 3], max_tokens=4, end_id=2, pad_id=2)


def test_a_late_answer_to_another_attempt_is_thrown_away():
    async def respond(request, _context):
        yield response("run-1-0-1", [9, 9])
        yield response(request.id, [4, 5])

    async def scenario(transport):
        stream = transport.open_stream()
        await stream.send(asked("run-1-0-2"))
        assert (await stream.receive()).token_ids == [4, 5]

    play(respond, scenario)


def test_requests_of_a_stream_share_one_call_and_its_channel():
    async def respond(request, _context):
        yield response(request.id, [1])

    async def scenario(transport):
        stream = transport.open_stream()
        for number in range(5):
            await stream.send(asked(f"r-{number}"))
            assert (await stream.receive()).is_final

    assert play(respond, scenario).num_streams == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (CODES.UNAVAILABLE, QueueFullError),
        (CODES.INVALID_ARGUMENT, InvalidRequestError),
        (CODES.INTERNAL, EngineError),
        (CODES.NOT_FOUND, ConnectionLostError),
        (CODES.CANCELLED, CancelledRequestError),
    ],
)
def test_an_error_status_ends_its_request_alone_and_the_stream_opens_again(code, kind):
    async def respond(request, context):
        if request.id == "bad":
            await context.abort(code, "the model says no")
        yield response(request.id, [1])

    async def scenario(transport):
        stream, other = transport.open_stream(), transport.open_stream()
        await other.send(asked("neighbour"))
        await stream.send(asked("bad"))
        with pytest.raises(kind, match="the model says no"):
            await stream.receive()
        assert (await other.receive()).is_final
        await stream.send(asked("good"))
        assert (await stream.receive()).is_final

    play(respond, scenario)


def test_an_error_that_comes_as_text_without_an_id_is_the_error_of_the_request_on_that_stream():
    async def respond(request, _context):
        if request.id == "bad":
            yield service_pb2.ModelStreamInferResponse(error_message="unexpected shape")
        else:
            yield response(request.id, [1])

    async def scenario(transport):
        stream, other = transport.open_stream(), transport.open_stream()
        await stream.send(asked("bad"))
        with pytest.raises(EngineError, match="unexpected shape"):
            await stream.receive()
        for each in (stream, other):
            await each.send(asked("good"))
            assert (await each.receive()).is_final

    play(respond, scenario)


def test_a_stream_that_the_server_ends_is_a_lost_connection_and_opens_again():
    class EndsStreams(FakeTriton):
        async def _stream(self, requests, _context):
            async for _ in requests:
                return
            yield

    async def main() -> None:
        async with EndsStreams(lambda *_: None).serving() as endpoint:
            transport = TritonTransport(endpoint)
            stream = transport.open_stream()
            for number in range(2):
                await stream.send(asked(f"r-{number}"))
                with pytest.raises(ConnectionLostError, match="closed the stream"):
                    await stream.receive()
            await transport.close()

    asyncio.run(main())


def test_a_server_that_goes_away_is_a_lost_connection_for_every_stream():
    async def respond(_request, _context):
        await asyncio.sleep(30)
        yield response("never", [1])

    async def main() -> None:
        serving = FakeTriton(respond).serving()
        endpoint = await serving.__aenter__()
        transport = TritonTransport(endpoint)
        streams = [transport.open_stream() for _ in range(3)]
        for number, stream in enumerate(streams):
            await stream.send(asked(f"r-{number}"))
        waiters = [asyncio.ensure_future(stream.receive()) for stream in streams]
        await asyncio.sleep(0.2)
        await serving.__aexit__(None, None, None)
        errors = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(getattr(error, "retryable", False) for error in errors), errors
        await transport.close()

    asyncio.run(main())


def test_a_cancel_ends_a_request_whose_stream_is_still_being_opened():
    async def cancelled_while_opening() -> None:
        listener = socket.create_server(("127.0.0.1", 0))  # takes the connection, and says nothing
        transport = TritonTransport(f"127.0.0.1:{listener.getsockname()[1]}")
        try:
            stream = transport.open_stream()
            sending = asyncio.ensure_future(stream.send(EngineRequest("a", [1], 1, 0, 0)))
            await asyncio.sleep(0)
            stream.cancel()
            done, _ = await asyncio.wait({sending}, timeout=5)
            assert done, "the cancel did not reach it"
            with pytest.raises(ConnectionLostError, match="cancelled"):
                await sending
        finally:
            await transport.close()
            listener.close()

    asyncio.run(cancelled_while_opening())
