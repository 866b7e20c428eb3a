"""One suite for every transport: the fake one of the unit tests, and the real one against a real server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fakes.clock import run_virtual
from fakes.transport import Answers, FakeServer, FakeTransport

from trtb.runner.errors import ConnectionLostError, InvalidRequestError, RequestError
from trtb.runner.transport import Chunk, EngineRequest, Stream, Transport

Scenario = Callable[[Transport], Coroutine[Any, Any, None]]
LONG = 1500  # tokens of a request that is cancelled long before its end


@pytest.fixture(params=["fake", pytest.param("triton", marks=pytest.mark.triton)])
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on a transport, to its end."""
    if request.param == "fake":
        slow = FakeServer(lambda asked: Answers(5_000 if asked.max_tokens == LONG else 2))
        return lambda scenario: run_virtual(closing(lambda: FakeTransport(slow), scenario))
    from trtb.runner.triton_client import TritonTransport

    shared = request.getfixturevalue("shared_server")
    return lambda scenario: asyncio.run(closing(lambda: TritonTransport(shared.endpoint), scenario))


async def closing(connect: Callable[[], Transport], scenario: Scenario) -> None:
    transport = connect()
    try:
        await scenario(transport)
    finally:
        await transport.close()


def request(name: str, ids: list[int] | None = None, **fields: Any) -> EngineRequest:
    settings = {"max_tokens": 4, "end_id": 2, "pad_id": 2, "top_k": 1, **fields}
    return EngineRequest(name, [1, 30, 40, 50] if ids is None else ids, **settings)


async def answer(stream: Stream, asked: EngineRequest) -> list[Chunk]:
    await stream.send(asked)
    chunks = [await stream.receive()]
    while not chunks[-1].is_final:
        chunks.append(await stream.receive())
    return chunks


def tokens(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def test_an_answer_ends_with_one_final_chunk_and_has_the_tokens_asked_for(play):
    async def scenario(transport: Transport) -> None:
        chunks = await answer(transport.open_stream(), request("one"))
        assert [chunk.is_final for chunk in chunks] == [True]
        assert 1 <= len(tokens(chunks)) <= 4
        assert 0 < chunks[-1].arrival_ns <= chunks[-1].first_token_ns

    play(scenario)


def test_a_stream_serves_one_request_after_another(play):
    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        first = [tokens(await answer(stream, request(f"again-{number}"))) for number in range(3)]
        assert first[0] == first[1] == first[2]
        other = tokens(await answer(stream, request("other", [1, 900, 17, 333, 5], max_tokens=6)))
        assert 1 <= len(other) <= 6

    play(scenario)


def test_a_streamed_answer_comes_in_parts_that_add_up_to_the_whole(play):
    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        whole = tokens(await answer(stream, request("whole", max_tokens=8)))
        parts = await answer(stream, request("parts", max_tokens=8, streaming=True))
        assert len(parts) > 1
        assert tokens(parts) == whole

    play(scenario)


@pytest.mark.parametrize("ids", [[], [1, 10**6], [-1, 5]], ids=["empty", "past-vocabulary", "negative"])
def test_a_refused_request_raises_and_leaves_its_stream_and_the_others_usable(play, ids):
    async def scenario(transport: Transport) -> None:
        stream, other = transport.open_stream(), transport.open_stream()
        await other.send(request("neighbour"))
        await stream.send(request("bad", ids))
        with pytest.raises(InvalidRequestError):
            await stream.receive()
        assert (await other.receive()).is_final
        assert (await answer(stream, request("good")))[-1].is_final

    play(scenario)


def test_a_cancelled_request_is_lost_to_who_waits_for_it_and_its_stream_goes_on(play):
    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        await stream.send(request("long", max_tokens=LONG))
        asyncio.get_running_loop().call_later(0.2, stream.cancel)
        with pytest.raises(ConnectionLostError):
            await stream.receive()
        assert (await answer(stream, request("next")))[-1].is_final

    play(scenario)


def test_a_cancel_harms_no_other_stream(play):
    async def scenario(transport: Transport) -> None:
        stream, other = transport.open_stream(), transport.open_stream()
        await stream.send(request("long", max_tokens=LONG))
        await other.send(request("neighbour", max_tokens=8))
        stream.cancel()
        assert (await other.receive()).is_final

    play(scenario)


def test_cancelling_is_harmless_where_nothing_is_in_flight(play):
    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        stream.cancel()
        stream.cancel()
        await answer(stream, request("first"))
        stream.cancel()
        assert (await answer(stream, request("second")))[-1].is_final

    play(scenario)


def test_nothing_can_be_received_where_nothing_was_sent(play):
    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        with pytest.raises(ConnectionLostError):
            await stream.receive()
        await stream.send(request("long", max_tokens=LONG))
        stream.cancel()
        with pytest.raises(ConnectionLostError):
            await stream.receive()

    play(scenario)


def test_a_cancelled_waiter_hears_of_its_own_cancel_and_not_of_an_error(play):
    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        await stream.send(request("long", max_tokens=LONG))
        waiter = asyncio.ensure_future(stream.receive())
        await asyncio.sleep(0.1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        stream.cancel()

    play(scenario)


def test_many_streams_are_answered_each_with_its_own_answer(play):
    async def scenario(transport: Transport) -> None:
        prompts = [[1, 100 + number, 7] for number in range(8)]
        alone = [tokens(await answer(transport.open_stream(), request(f"a{p[1]}", p))) for p in prompts]
        together = await asyncio.gather(
            *(answer(transport.open_stream(), request(f"t{p[1]}", p)) for p in prompts)
        )
        assert [tokens(chunks) for chunks in together] == alone

    play(scenario)


@pytest.mark.parametrize("kind", ["fake", "triton"])
def test_a_server_that_is_not_there_is_a_lost_connection(kind):
    def connect() -> Transport:
        if kind == "fake":
            return FakeTransport(FakeServer(is_down=True))
        from trtb.runner.triton_client import TritonTransport

        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            return TritonTransport(f"127.0.0.1:{closed.getsockname()[1]}")

    async def scenario(transport: Transport) -> None:
        stream = transport.open_stream()
        for _ in range(2):
            with pytest.raises(ConnectionLostError) as caught:
                await answer(stream, request("nobody"))
            assert isinstance(caught.value, RequestError)
            assert caught.value.retryable

    asyncio.run(closing(connect, scenario))
