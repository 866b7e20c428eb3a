"""A gRPC server in this process that speaks ModelStreamInfer as a script tells it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

Responses = Callable[[Any, Any], AsyncIterator[Any]]


@dataclass
class FakeTriton:
    """Answers each request with the responses of `respond(request, context)`."""

    respond: Responses
    requests: list[Any] = field(default_factory=list)
    num_streams: int = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on loopback; yields the endpoint."""
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=service_pb2.ModelInferRequest.FromString,
            response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString,
        )
        service = "inference.GRPCInferenceService"
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"ModelStreamInfer": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.num_streams += 1
        async for request in requests:
            self.requests.append(request)
            async for response in self.respond(request, context):
                yield response


def response(request_id: str, tokens: list[int], *, is_final: bool = True) -> Any:
    """Return a response with output ids."""
    message = service_pb2.ModelStreamInferResponse()
    inner = message.infer_response
    inner.id = request_id
    inner.outputs.add(name="output_ids", datatype="INT32", shape=(1, 1, len(tokens)))
    inner.raw_output_contents.append(b"".join(token.to_bytes(4, "little") for token in tokens))
    inner.parameters["triton_final_response"].bool_param = is_final
    return message
