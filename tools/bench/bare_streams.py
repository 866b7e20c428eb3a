"""Child of the `client` benchmark: the same requests over bare gRPC streams, and nothing else.

One kept stream for each request in flight, plain protobuf messages of the same tensors; the prompts are
rendered before the clock starts. What it leaves out is everything that makes a run of it: reading,
checking, rendering, text, deadlines, retries, the ledger and the output.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson
from transformers import PreTrainedTokenizerFast
from tritonclient.grpc import service_pb2

from trtb.build.manifest import EngineManifest, read_record
from trtb.model_repo import contract
from trtb.runner.triton_client import CHANNEL_OPTIONS, METADATA, METHOD
from trtb.runner.triton_messages import OUTPUTS_READ, STRUCT_FORMATS
from trtb.tools.bench.children import serve_task

Prompt = tuple[list[int], int]  # ids, max_tokens


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Send every prompt of the file; returns the CPU seconds of the sending and the reading."""
    engine_dir = Path(task["engine_dir"])
    manifest = read_record(engine_dir / "manifest.json", EngineManifest)
    prompts = read_prompts(Path(task["input"]), engine_dir)
    start, wall = time.process_time(), time.monotonic()
    num_tokens = asyncio.run(_send_all(prompts, task["endpoints"][0], task["concurrency"], manifest))
    cpu_s, wall_s = time.process_time() - start, time.monotonic() - wall
    return {"cpu_s": cpu_s, "requests_per_s": len(prompts) / wall_s, "num_tokens": num_tokens}


def read_prompts(path: Path, engine_dir: Path) -> list[Prompt]:
    """Render a request file as a run does: the ids and max_tokens of each line."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(engine_dir / "tokenizer")
    prompts = []
    with path.open("rb") as file:
        for body in (orjson.loads(line)["body"] for line in file):
            text = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
            ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
            prompts.append((ids, body["max_tokens"]))
    return prompts


async def _send_all(prompts: list[Prompt], endpoint: str, concurrency: int, manifest: EngineManifest) -> int:
    work = iter(enumerate(prompts))
    async with grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
        open_stream = channel.stream_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        workers = [_work(open_stream(metadata=METADATA), work, manifest) for _ in range(concurrency)]
        return sum(await asyncio.gather(*workers))


async def _work(call: Any, work: Iterator[tuple[int, Prompt]], manifest: EngineManifest) -> int:
    num_tokens = 0
    for number, (ids, max_tokens) in work:
        await call.write(message_of(str(number), ids, max_tokens, manifest))
        is_final = False
        while not is_final:
            message = await call.read()
            if message is grpc.aio.EOF or message.error_message:
                raise RuntimeError(f"the server answered with an error: {message}")
            response = message.infer_response
            for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
                if tensor.name == contract.OUTPUT_IDS.name:
                    num_tokens += len(np.frombuffer(raw, dtype="<i4").tolist())
            is_final = response.parameters["triton_final_response"].bool_param
    await call.done_writing()
    return num_tokens


def message_of(request_id: str, ids: list[int], max_tokens: int, manifest: EngineManifest) -> Any:
    """Return the message that a greedy request of ours amounts to."""
    message = service_pb2.ModelInferRequest(model_name=contract.MODEL_NAME, id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for spec in OUTPUTS_READ:
        message.outputs.add(name=spec.name)
    message.inputs.add(name=contract.INPUT_IDS.name, datatype="INT32", shape=(1, len(ids)))
    message.raw_input_contents.append(np.array(ids, dtype="<i4").tobytes())
    scalars: tuple[tuple[contract.TensorSpec, int], ...] = (
        (contract.INPUT_LENGTHS, len(ids)),
        (contract.REQUEST_OUTPUT_LEN, max_tokens),
        (contract.END_ID, manifest.tokens.end),
        (contract.PAD_ID, manifest.tokens.pad),
        (contract.STREAMING, False),
        (contract.EXCLUDE_INPUT_IN_OUTPUT, True),
        (contract.RETURN_PERF_METRICS, True),
        (contract.TOP_K, 1),
    )
    for spec, value in scalars:
        message.inputs.add(name=spec.name, datatype=spec.data_type, shape=(1, 1))
        message.raw_input_contents.append(struct.pack(STRUCT_FORMATS[spec.data_type], value))
    return message


if __name__ == "__main__":
    serve_task(run)
