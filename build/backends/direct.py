"""The pipeline driven directly, nothing between: what the benchmark `engine_ceiling` holds a run against.

Runs in a process of its own, as a served engine does: task on stdin, answer on stdout, both JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from trtb.build.backends.openvino_runtime import silence_telemetry

Prompt = tuple[list[int], int]  # ids, max_tokens


def generate_all(
    engine_dir: Path,
    prompts: list[Prompt],
    *,
    warm_up: list[Prompt],
    num_kv_blocks: int,
    max_num_tokens: int,
    max_batch_size: int,
    eos: list[int],
    deterministic: bool = False,
) -> tuple[float, int]:
    """Answer all prompts greedily, with the served engine's own settings.

    Returns:
        The seconds from the first request to the last answer, loading and warm-up apart, and the number
        of output tokens without the ids that end an answer.
    """
    silence_telemetry()
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_kv_blocks
    scheduler.max_num_batched_tokens = max_num_tokens
    scheduler.max_num_seqs = max_batch_size
    scheduler.enable_prefix_caching = True
    properties = device_properties(deterministic=deterministic)
    pipeline = openvino_genai.ContinuousBatchingPipeline(engine_dir, scheduler, "CPU", properties)
    _generate(pipeline, warm_up, eos)
    start = time.monotonic()
    num_tokens = _generate(pipeline, prompts, eos)
    return time.monotonic() - start, num_tokens


def device_properties(*, deterministic: bool) -> dict[str, str]:
    """Return the CPU plugin's properties, as the served model sets them; a test holds the two together."""
    if deterministic:
        return {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        }
    import openvino

    precision = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    return {"KV_CACHE_PRECISION": precision}


def _generate(pipeline: Any, prompts: list[Prompt], eos: list[int]) -> int:
    import numpy as np
    import openvino
    import openvino_genai

    handles = []
    for number, (ids, max_tokens) in enumerate(prompts):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.set_eos_token_id(eos[0])
        config.stop_token_ids = set(eos)
        tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
        handles.append(pipeline.add_request(number, tensor, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    num_tokens = 0
    for handle in handles:
        ids = [token for output in handle.read_all() for token in output.generated_ids]
        num_tokens += len(ids) - (1 if ids and ids[-1] in eos else 0)
    return num_tokens


def main() -> None:
    """Read a task, generate, and answer."""
    task = json.loads(sys.stdin.read())
    duration_s, num_tokens = generate_all(Path(task.pop("engine_dir")), task.pop("prompts"), **task)
    print(json.dumps({"duration_s": duration_s, "num_tokens": num_tokens}))  # noqa: T201


if __name__ == "__main__":
    main()
