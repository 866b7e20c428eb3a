"""An endpoint: alive means that tokens come out."""

from __future__ import annotations

import asyncio
import time

import pytest
from fakes.clock import run_virtual
from fakes.transport import FakeServer, FakeTransport, Hangs

from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import ConnectionLostError, ServerLostError
from trtb.runner.transport import EngineRequest


def endpoint_of(server: FakeServer, **config) -> Endpoint:
    return Endpoint(EndpointConfig(**config), FakeTransport(server))


def test_a_server_is_ready_when_a_token_has_come_out():
    async def main() -> None:
        server = FakeServer(is_down=True)
        endpoint = endpoint_of(server)
        asyncio.get_running_loop().call_later(5.0, server.come_back)
        await endpoint.wait_ready()
        assert endpoint.is_up.is_set()
        assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.3)
        assert server.sent == []

    run_virtual(main())


def test_a_server_that_never_answers_is_lost_with_the_way_on():
    async def main() -> None:
        with pytest.raises(
            ServerLostError, match=r"fake:0: no token within 0\.05 s: the fake server is down"
        ) as caught:
            await endpoint_of(FakeServer(is_down=True), server_wait_s=0.05).wait_ready()
        assert caught.value.exit_code == 6
        assert "run the same command again" in caught.value.hint

    run_virtual(main())


def test_one_heard_from_lately_is_alive_without_being_asked():
    async def main() -> None:
        server = FakeServer()
        endpoint = endpoint_of(server)
        endpoint.is_up.set()
        since = time.monotonic()
        endpoint.heard()
        server.is_down = True
        assert await endpoint.is_alive(since)

    run_virtual(main())


def test_a_dead_one_is_taken_down_with_everything_in_flight_and_brought_back_when_it_answers():
    async def main() -> None:
        server = FakeServer(lambda _: Hangs())
        endpoint = endpoint_of(server)
        endpoint.is_up.set()
        stream = endpoint.open_stream()
        await stream.send(EngineRequest("r", [1], 1, 0, 0))
        waiting = asyncio.ensure_future(stream.receive())
        server.is_down = True
        assert not await endpoint.is_alive(time.monotonic())
        assert not endpoint.is_up.is_set()
        with pytest.raises(ConnectionLostError):
            await waiting
        assert server.cancelled == ["r"]
        assert not await endpoint.is_alive(time.monotonic())
        watch = asyncio.ensure_future(endpoint.supervise())
        server.come_back()
        await asyncio.wait_for(endpoint.is_up.wait(), 5)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    run_virtual(main())
