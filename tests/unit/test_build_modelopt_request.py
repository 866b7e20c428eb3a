"""What is asked of the modelopt worker, and how its reply is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import trtllm_checkpoint as fake

from trtb.build.errors import BuildError
from trtb.build.quantization import get_scheme
from trtb.build.trtllm.modelopt_request import (
    MAX_AWQ_TOKENS,
    WORKER_SCRIPT,
    make_request,
    peak_host_bytes,
    read_result,
    step_inputs,
)
from trtb.build.trtllm.trtllm_tensors import CheckpointOptions

FIGURES: dict[str, Any] = {
    "num_tokens": 100,
    "perplexity": 16.0,
    "base_perplexity": 15.0,
    "top1_agreement": 0.9,
    "logits_cosine": 0.99,
    "greedy_agreement": 0.5,
}
RESULT: dict[str, Any] = {
    "decoder_type": "llama",
    "architecture": "LlamaForCausalLM",
    "device": "cpu",
    "num_parameters": 1000,
    "num_calibration_tokens": 64,
    "num_calibration_batches": 1,
    "compute_dtype": "f32",
    "seconds": {"load": 1.0},
    "weights": FIGURES,
    "simulated": {**FIGURES, "perplexity": 17.0},
    "notes": [],
}


def make_options(quant: str) -> CheckpointOptions:
    return CheckpointOptions(get_scheme("tensorrt_llm", quant), "bf16", group_size=64)


def test_the_request_names_what_shapes_the_files(tmp_path: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    request = make_request(source, make_options("fp8"), tmp_path / "out", calibration_token_ids=[(1, 2)])
    assert WORKER_SCRIPT.is_file()
    assert (request["quant"], request["load_dtype"], request["token_ids"]) == ("fp8", "bf16", [[1, 2]])
    inputs = step_inputs(request)
    assert not any(str(tmp_path) in str(value) for value in inputs.values())
    assert inputs != step_inputs(make_request(source, make_options("fp8"), tmp_path / "out"))


def test_awq_takes_a_bounded_part_of_the_samples(tmp_path: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    samples = [[1] * 1000 for _ in range(30)]
    counts = {
        quant: sum(
            map(
                len,
                make_request(source, make_options(quant), tmp_path, calibration_token_ids=samples)[
                    "token_ids"
                ],
            )
        )
        for quant in ("fp8", "int4_awq")
    }
    assert counts == {"fp8": 30_000, "int4_awq": MAX_AWQ_TOKENS}


def test_the_quality_is_that_of_the_files() -> None:
    result = read_result(RESULT)
    assert result.quality is not None
    assert (result.quality.perplexity, result.quality.greedy_agreement) == (16.0, 0.5)
    simulated = read_result({**RESULT, "weights": None}).quality
    assert simulated is not None
    assert simulated.perplexity == 17.0
    assert read_result({**RESULT, "weights": None, "simulated": None}).quality is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "tpu"}, "device"),
        ({"num_parameters": "1000"}, "num_parameters"),
        ({"weights": {**FIGURES, "perplexity": None}}, r"weights\.perplexity"),
        ({"more": 1}, "more"),
    ],
)
def test_another_reply_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=rf"modelopt_export\.py: reply: {message}"):
        read_result({**RESULT, **change})


def test_measuring_takes_memory(tmp_path: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    assert peak_host_bytes(source, "bf16") - peak_host_bytes(source, "bf16", is_measured=False) == (
        4 * source.num_parameters
    )
