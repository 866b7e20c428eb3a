"""TensorRT-LLM's model without a GPU: its KV cache is kept account of, and its answers are always the same.

What it keeps and evicts, counts and refuses is as TensorRT-LLM's sources and tests have it: blocks of whole
tokens, reused once their request has ended, evicted by priority and then by age; ranges of retention come
with ends and priorities, in order, and none is empty. What it was asked is written to `requests.calls`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from trtb.model_repo import contract

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
NUM_TOKENS = 16
DEFAULT_PRIORITY = 35
DEFAULT_POOL_TOKENS = 65_536


@dataclass
class Pool:
    """Blocks that may be reused, by the ids from the prompt's beginning to their end."""

    num_blocks: int
    tokens_per_block: int
    blocks: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)  # priority, last use
    clock: itertools.count = field(default_factory=itertools.count)

    def take(self, ids: list[int], priorities: list[int]) -> int:
        """Compute a prompt; return how many of its blocks were there. Its last token is always computed."""
        size = self.tokens_per_block
        keys = [tuple(ids[: end + size]) for end in range(0, len(ids) - size + 1, size)]
        usable = keys[: (len(ids) - 1) // size]
        reused = len(list(itertools.takewhile(self.blocks.__contains__, usable)))
        for key in keys:
            self.blocks.pop(key, None)
            self.blocks[key] = priorities[len(key) - size], next(self.clock)
        while len(self.blocks) > self.num_blocks:
            del self.blocks[min(self.blocks, key=self.blocks.__getitem__)]
        return reused


class TritonPythonModel:
    """Triton's interface of a python-backend model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Make the pool that the model's parameters ask for, and tell of it."""
        found = json.loads(args["model_config"])["parameters"]
        parameters = {name: value["string_value"] for name, value in found.items()}
        tokens_per_block = int(parameters["fake_tokens_per_block"])
        num_tokens = int(parameters.get("max_tokens_in_paged_kv_cache", DEFAULT_POOL_TOKENS))
        self._is_reusing = parameters["enable_kv_cache_reuse"] == "true"
        self._pool = Pool(num_tokens // tokens_per_block, tokens_per_block)
        self._calls = Path(json.loads(os.environ["FAKE_GPU"])["folder"]) / "requests.calls"
        self._family = pb_utils.MetricFamily(
            name="nv_trt_llm_kv_cache_block_metrics",
            description="KV blocks",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        labels = {"model": "tensorrt_llm", "version": "1", "kv_cache_block_type": "max"}
        self._max_blocks = self._family.Metric(labels=labels)

    def execute(self, requests: list) -> None:
        """Answer each request, with as many tokens as asked, at most 16."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                sender.send(pb_utils.InferenceResponse(self._answer(request)), flags=FINAL)
            except ValueError as exc:
                error = pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
            self._max_blocks.set(self._pool.num_blocks)  # as there: with the figures of the first steps

    def _answer(self, request: object) -> list:
        ids = _values(request, contract.INPUT_IDS)
        ranges, decode_priority = _retention(request)
        priorities = [DEFAULT_PRIORITY] * len(ids)
        for start, end, priority in ranges:
            priorities[start:end] = [priority] * len(priorities[start:end])
        arrival_ns = time.monotonic_ns()
        reused = self._pool.take(ids, priorities) if self._is_reusing else 0
        line = {
            "id": request.request_id(), "num_ids": len(ids), "ranges": ranges,
            "decode_priority": decode_priority, "reused_blocks": reused,
        }  # fmt: skip
        with self._calls.open("a") as file:
            file.write(json.dumps(line) + "\n")
        (wanted,) = _values(request, contract.REQUEST_OUTPUT_LEN)
        tokens = list(range(1000, 1000 + min(NUM_TOKENS, wanted)))
        total = -(-(len(ids) + len(tokens)) // self._pool.tokens_per_block)
        told = [
            (contract.OUTPUT_IDS, [[tokens]], np.int32),
            (contract.SEQUENCE_LENGTH, [[len(tokens)]], np.int32),
        ]
        if _values(request, contract.RETURN_PERF_METRICS) == [True]:
            told += [
                (contract.KV_CACHE_REUSED_BLOCKS, [[reused]], np.int32),
                (contract.KV_CACHE_ALLOC_NEW_BLOCKS, [[total - reused]], np.int32),
                (contract.KV_CACHE_ALLOC_TOTAL_BLOCKS, [[total - reused]], np.int32),
                (contract.ARRIVAL_TIME_NS, [[arrival_ns]], np.int64),
                (contract.FIRST_TOKEN_TIME_NS, [[time.monotonic_ns()]], np.int64),
            ]
        return [pb_utils.Tensor(spec.name, np.array(value, dtype)) for spec, value, dtype in told]


def _values(request: object, spec: contract.TensorSpec) -> list:
    tensor = pb_utils.get_input_tensor_by_name(request, spec.name)
    return [] if tensor is None else tensor.as_numpy().reshape(-1).tolist()


def _retention(request: object) -> tuple[list[tuple[int, int, int]], int]:
    """Return the ranges with their priorities, and that of the answer.

    Raises:
        ValueError: TensorRT-LLM refuses such ranges.
    """
    starts, ends, priorities, decode = (_values(request, spec) for spec in contract.RETENTION_INPUTS)
    if not len(starts) == len(ends) == len(priorities):
        raise ValueError("retention_token_range_ends and _priorities must have the length of _starts")
    ranges = list(zip(starts, ends, priorities, strict=True))
    if any(start >= end for start, end, _ in ranges):
        raise ValueError("Range must have a positive, non-zero length.")
    if any(end > later for (_, end, _), (later, _, _) in itertools.pairwise(ranges)):
        raise ValueError("Token ranges must be non-overlapping.")
    if not all(0 <= priority <= 100 for priority in (*priorities, *decode)):
        raise ValueError("Invalid priority value. Must be between 0 and 100")
    return ranges, decode[0] if decode and ranges else DEFAULT_PRIORITY
