"""The CPU model behind Triton against the engine driven directly, and against clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import commands
import grpc
import pytest
from tritonclient.grpc import service_pb2

from trtb.build.store import EngineStore
from trtb.runner.errors import EngineError, RequestError
from trtb.runner.transport import EngineRequest
from trtb.runner.triton_client import TritonTransport
from trtb.runner.triton_messages import serialise

pytestmark = pytest.mark.triton

PROMPTS = [[1, 9690, 198, 2683 + 13 * n, 338, 253, 5356 + 7 * n, 28] + [100 + n] * (n % 5) for n in range(40)]
DIRECT = """
import json, sys
import numpy as np
import openvino as ov
import openvino_genai as genai
sys.modules["openvino_telemetry"] = None
folder, prompts = sys.argv[1], json.loads(sys.argv[2])
scheduler = genai.SchedulerConfig()
scheduler.num_kv_blocks = 100
properties = {
    "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"
}
pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
config = genai.GenerationConfig()
config.max_new_tokens = 8
config.set_eos_token_id(2)
answers = []
for number, ids in enumerate(prompts):
    handle = pipeline.add_request(number, ov.Tensor(np.array([ids], dtype=np.int64)), config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    (output,) = handle.read_all()
    answers.append([token for token in output.generated_ids if token != 2])
print(json.dumps(answers))
"""


def request(name: str, ids: list[int], **fields: Any) -> EngineRequest:
    return EngineRequest(name, ids, **{"max_tokens": 8, "end_id": 2, "pad_id": 2, "top_k": 1, **fields})


def on(endpoint: str, scenario: Callable[[TritonTransport], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        transport = TritonTransport(endpoint)
        try:
            return await asyncio.wait_for(scenario(transport), 250)
        finally:
            await transport.close()

    return asyncio.run(main())


async def tokens(transport: TritonTransport, asked: EngineRequest) -> list[int]:
    stream = transport.open_stream()
    await stream.send(asked)
    ids: list[int] = []
    while True:
        chunk = await stream.receive()
        ids += chunk.token_ids
        if chunk.is_final:
            return ids


async def tokens_of_all(
    transport: TritonTransport, asked: list[EngineRequest], concurrency: int
) -> list[list[int]]:
    places = asyncio.Semaphore(concurrency)

    async def one(each: EngineRequest) -> list[int]:
        async with places:
            return await tokens(transport, each)

    return list(await asyncio.gather(*map(one, asked)))


@pytest.fixture(scope="module")
def direct(engine_home) -> list[list[int]]:
    """What the engine answers when nothing stands between."""
    engine = EngineStore(engine_home).resolve().path
    child = subprocess.run(
        [sys.executable, "-c", DIRECT, str(engine), json.dumps(PROMPTS)],
        check=True, capture_output=True, text=True, cwd=sys.prefix,
    )  # fmt: skip
    answers: list[list[int]] = json.loads(child.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("concurrency", [1, 32])
def test_answers_are_the_engines_own_token_for_token(shared_server, direct, concurrency):
    asked = [request(f"direct-{number}", ids) for number, ids in enumerate(PROMPTS)]
    found = on(shared_server.endpoint, lambda transport: tokens_of_all(transport, asked, concurrency))
    assert found == direct


def test_seeded_answers_are_the_same_alone_and_in_company(shared_server):
    asked = [
        request(f"seed-{number}", PROMPTS[number % 4], top_k=0, temperature=1.0, seed=number // 4)
        for number in range(16)
    ]
    alone = on(shared_server.endpoint, lambda transport: tokens_of_all(transport, asked, 1))
    together = on(shared_server.endpoint, lambda transport: tokens_of_all(transport, asked, 16))
    assert alone == together
    assert len({tuple(ids) for ids in alone}) > 4


def spoilt(change: Callable[[Any], None]) -> Any:
    message = service_pb2.ModelInferRequest.FromString(serialise(request("spoilt", [1, 30, 40])))
    change(message)
    return message


def drop(name: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        index = [tensor.name for tensor in message.inputs].index(name)
        del message.inputs[index]
        del message.raw_input_contents[index]

    return change


def put(name: str, data: bytes, shape: list[int] | None = None, datatype: str = "") -> Callable[[Any], None]:
    def change(message: Any) -> None:
        index = [tensor.name for tensor in message.inputs].index(name)
        message.raw_input_contents[index] = data
        if shape:
            message.inputs[index].shape[:] = shape
        message.inputs[index].datatype = datatype or message.inputs[index].datatype

    return change


def int32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


@pytest.mark.parametrize(
    "change",
    [
        drop("input_ids"),
        drop("input_lengths"),
        drop("request_output_len"),
        put("input_ids", int32(1, 49152, 3)),
        put("input_ids", int32(1, -1, 3)),
        put("input_ids", b"", [1, 0]),
        put("input_ids", int32(1, 2, 3, 4, 5, 6), [2, 3]),
        put("input_ids", int32(1, 2, 3), [3]),
        put("input_ids", int32(1, 2)),
        put("input_ids", b"\0" * 12, None, "FP32"),
        put("input_lengths", int32(7)),
        put("input_lengths", int32(-3)),
        put("request_output_len", int32(0)),
        put("request_output_len", int32(-5)),
        put("request_output_len", int32(2**31 - 1)),
        put("request_output_len", int32(8190)),
        lambda message: setattr(message, "model_name", "no_such_model"),
        lambda message: message.inputs.add(name="nonsense", datatype="INT32", shape=(1, 1)),
    ],
)
def test_a_request_that_cannot_be_run_is_answered_with_an_error_and_the_engine_lives(shared_server, change):
    async def scenario(transport: TritonTransport) -> None:
        call = transport._channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )()
        await call.write(spoilt(change))
        answer = await asyncio.wait_for(call.read(), 20)
        assert answer is not grpc.aio.EOF
        assert answer.error_message
        assert "Traceback" not in answer.error_message
        assert "site-packages" not in answer.error_message
        call.cancel()
        assert await tokens(transport, request("after", [1, 30, 40]))

    on(shared_server.endpoint, scenario)


def test_a_cancelled_request_leaves_the_engine_within_seconds(shared_server):
    def active() -> float:
        name = "nv_trt_llm_request_metrics"
        return commands.metric(shared_server.metrics_url, name, request_type="active")

    async def scenario(transport: TritonTransport) -> None:
        streams = [transport.open_stream() for _ in range(3)]
        for number, stream in enumerate(streams):
            await stream.send(request(f"long-{number}", PROMPTS[number], max_tokens=3000, min_tokens=3000))
        await asyncio.to_thread(commands.wait_until, lambda: active() == 3, 20, "three are running")
        for stream in streams:
            stream.cancel()
        await asyncio.to_thread(commands.wait_until, lambda: active() == 0, 5, "nothing is running")

    before = commands.metric(shared_server.metrics_url, "trtb_requests_total", outcome="cancelled")
    on(shared_server.endpoint, scenario)
    after = commands.metric(shared_server.metrics_url, "trtb_requests_total", outcome="cancelled")
    assert after == before + 3


def test_the_metrics_tell_what_the_engine_has_done(shared_server):
    url = shared_server.metrics_url

    def told() -> dict[str, float]:
        return {
            "completed": commands.metric(url, "trtb_requests_total", outcome="completed"),
            "input": commands.metric(url, "trtb_tokens_total", kind="input"),
            "output": commands.metric(url, "trtb_tokens_total", kind="output"),
            "ttft": commands.metric(url, "trtb_ttft_seconds_count"),
        }

    before = told()
    (ids,) = on(shared_server.endpoint, lambda t: tokens_of_all(t, [request("m", [1, 30, 40, 50])], 1))
    commands.wait_until(lambda: told()["completed"] == before["completed"] + 1, 5, "the request is counted")
    after = told()
    assert after["input"] - before["input"] == 4
    assert after["output"] - before["output"] == len(ids)
    assert after["ttft"] - before["ttft"] == 1
    blocks = "nv_trt_llm_kv_cache_block_metrics"
    assert commands.metric(url, blocks, kv_cache_block_type="max") == shared_server.num_kv_blocks
    assert commands.metric(url, blocks, kv_cache_block_type="tokens_per") == 32


def test_a_request_that_breaks_the_engines_step_fails_alone(shared_server):
    url = shared_server.metrics_url
    innocent = [request(f"innocent-{number}", PROMPTS[number], max_tokens=40) for number in range(4)]

    async def scenario(transport: TritonTransport) -> list[Any]:
        guilty = replace(request("guilty", [1, 30, 40]), guide=("regex", "(unclosed"))
        running = [asyncio.ensure_future(tokens(transport, each)) for each in innocent]
        await asyncio.sleep(0.5)
        return list(await asyncio.gather(tokens(transport, guilty), *running, return_exceptions=True))

    alone = on(shared_server.endpoint, lambda transport: tokens_of_all(transport, innocent, 1))
    before = commands.metric(url, "trtb_engine_rebuilds_total")
    error, *answers = on(shared_server.endpoint, scenario)
    assert isinstance(error, EngineError)
    assert isinstance(error, RequestError)
    assert answers == alone
    commands.wait_until(
        lambda: commands.metric(url, "trtb_engine_rebuilds_total") == before + 1,
        10,
        "the engine was built again",
    )
