"""The scripts of NVIDIA's container that convert and quantise families which our own worker does not export.

They load a checkpoint with code of its own allowed. A checkpoint that brings any is refused here whatever
was allowed elsewhere; the container has no network, no rights, and the checkpoint only to read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from trtb.build import files
from trtb.build.errors import CheckpointUnsafeError, CheckpointUnsupportedError, ConfigError
from trtb.build.trtllm.trtllm_container import (
    CHECKPOINT_DIR,
    EXTRA_DIR,
    OUTPUT_DIR,
    WORK_DIR,
    WORK_FOLDER,
    Container,
    Mount,
    new_container_name,
)
from trtb.build.trtllm.trtllm_log import Progress
from trtb.build.trtllm.trtllm_run import run_tool

EXAMPLES = PurePosixPath("/app/examples")
QUANTIZE = EXAMPLES / "quantization" / "quantize.py"
CALIBRATION_DIR = EXTRA_DIR / "calibration"
MAX_AWQ_SAMPLES = 32  # quantize.py takes no more for AWQ, whatever it is told

DTYPES = {"bf16": "bfloat16", "f16": "float16"}
# Our name -> --qformat: each needs calibration, which only quantize.py does.
QFORMATS = {
    "fp8": "fp8",
    "int4_awq": "int4_awq",
    "w4a8_awq": "w4a8_awq",
    "int8_sq": "int8_sq",
    "nvfp4": "nvfp4",
}
# Our name -> --weight_only_precision: the weights are quantised as they are converted.
WEIGHT_ONLY = {"int8_wo": "int8", "int4_wo": "int4"}


@dataclass(frozen=True, slots=True)
class Converter:
    """One convert_checkpoint.py and what it can do."""

    folder: str
    has_pp: bool = True

    @property
    def script(self) -> PurePosixPath:
        """Return its path in the container."""
        return EXAMPLES / "models" / "core" / self.folder / "convert_checkpoint.py"


_LLAMA = Converter("llama")
_QWEN = Converter("qwen")
_PHI = Converter("phi", has_pp=False)
# Hugging Face's architecture -> its converter
CONVERTERS = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "PhiForCausalLM": _PHI,
    "Phi3ForCausalLM": _PHI,
}


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """One conversion or quantisation in the container."""

    architecture: str
    quant: str
    dtype: str  # "bf16" or "f16": of what is not quantised
    kv_cache_dtype: str  # "bf16", "f16", "fp8" or "int8"
    group_size: int | None
    tp_size: int
    pp_size: int
    num_samples: int  # of calibration
    max_tokens: int  # of one sample
    seed: int

    @property
    def needs_calibration(self) -> bool:
        """Return whether it runs quantize.py, which wants texts."""
        return self.quant in QFORMATS


def script_argv(job: ScriptJob) -> list[str]:
    """Return the command for a job, as it is run in the container.

    Raises:
        CheckpointUnsupportedError: No script there converts this family so.
        ConfigError: No script there makes such a KV cache of such weights.
    """
    if job.needs_calibration:
        return ["python3", str(QUANTIZE), *_quantize_options(job)]
    if job.architecture not in CONVERTERS:
        raise CheckpointUnsupportedError(
            f"architecture: {job.architecture}; the container converts {', '.join(CONVERTERS)}",
            f"choose another --quant ({', '.join(QFORMATS)}) or another checkpoint",
        )
    return ["python3", str(CONVERTERS[job.architecture].script), *_convert_options(job)]


def refuse_remote_code(folder: Path) -> None:
    """Refuse a Hugging Face folder that brings code or pickles, which the scripts would run.

    Raises:
        CheckpointUnsafeError: It does.
    """
    unsafe = (".py", ".bin", ".pt", ".pth", ".pkl", ".pickle")
    found = sorted(path.name for path in folder.rglob("*") if path.suffix in unsafe)
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file() and "auto_map" in json.loads(path.read_bytes()):
            found.append(f"{name} (auto_map)")
    if found:
        raise CheckpointUnsafeError(
            f"{folder}: {found[0]}: NVIDIA's scripts would run a checkpoint's own code; expected none",
            "take the code out, if the checkpoint's family needs none, or choose another checkpoint",
        )


def write_calibration_dataset(texts: Sequence[str], folder: Path) -> None:
    """Write texts as the local dataset that quantize.py reads: split "train", column "text"."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{json.dumps({'text': text}, ensure_ascii=False)}\n" for text in texts)
    files.write_atomic(folder / "train.jsonl", lines.encode())


def _places() -> list[str]:
    return ["--model_dir", str(CHECKPOINT_DIR), "--output_dir", str(OUTPUT_DIR)]


def _quantize_options(job: ScriptJob) -> list[str]:
    num_samples = min(job.num_samples, MAX_AWQ_SAMPLES) if job.quant.endswith("_awq") else job.num_samples
    argv = [*_places(), "--dtype", DTYPES[job.dtype], "--qformat", QFORMATS[job.quant]]
    if job.kv_cache_dtype in {"fp8", "int8"}:
        argv += ["--kv_cache_dtype", job.kv_cache_dtype]
    if job.group_size is not None:
        argv += ["--awq_block_size", str(job.group_size)]
    argv += ["--calib_dataset", str(CALIBRATION_DIR), "--calib_size", str(num_samples)]
    argv += ["--calib_max_seq_length", str(job.max_tokens), "--tokenizer_max_seq_length", str(job.max_tokens)]
    argv += ["--batch_size", "1", "--seed", str(job.seed), "--device", "cuda"]
    return [*argv, "--tp_size", str(job.tp_size), "--pp_size", str(job.pp_size)]


def _convert_options(job: ScriptJob) -> list[str]:
    converter = CONVERTERS[job.architecture]
    if job.pp_size > 1 and not converter.has_pp:
        raise ConfigError(
            f"pp_size: {job.pp_size}; the container's script for {job.architecture} makes 1 stage",
            "use --tp-size instead",
        )
    argv = [*_places(), "--dtype", DTYPES[job.dtype], "--tp_size", str(job.tp_size)]
    if converter.has_pp:
        argv += ["--pp_size", str(job.pp_size)]
    if job.quant in WEIGHT_ONLY:
        argv += ["--use_weight_only", "--weight_only_precision", WEIGHT_ONLY[job.quant]]
    if job.kv_cache_dtype not in DTYPES:
        # its own INT8 calibration reads no local texts
        raise ConfigError(
            f"kv_cache_dtype: {job.kv_cache_dtype!r} with {job.quant} weights of {job.architecture}; "
            "the container's scripts make it with calibrated weights only",
            f"use --kv-cache-dtype auto, or --quant {', '.join(QFORMATS)}",
        )
    return argv


def run_script(
    image: str,
    job: ScriptJob,
    checkpoint: Path,
    output: Path,
    *,
    texts: Sequence[str],
    log: IO[str],
    say: Progress,
) -> list[str]:
    """Fill `output`, an empty folder, with a TensorRT-LLM checkpoint, not verified yet; return the command.

    Args:
        image: The container's, as `find_compiler` pinned it.
        job: What is made.
        checkpoint: A Hugging Face folder; it is only read.
        output: On success it holds the checkpoint and nothing else; on an error its content is undefined.
        texts: Of the calibration, the most telling first; AWQ takes 32 at the most.
        log: Gets the script's whole output as it comes.
        say: Called with ("quantise", detail).

    Raises:
        CheckpointUnsafeError: The checkpoint brings code.
        CheckpointUnsupportedError, ConfigError: No script there does it.
        CompileError: The script failed.
    """
    argv = script_argv(job)
    refuse_remote_code(checkpoint)
    work = output / WORK_FOLDER
    work.mkdir()
    mounts = [
        Mount(checkpoint, CHECKPOINT_DIR),
        Mount(output, OUTPUT_DIR, is_writable=True),
        Mount(work, WORK_DIR, is_writable=True),
    ]
    if job.needs_calibration:
        write_calibration_dataset(texts, work / "calibration")
        mounts.append(Mount(work / "calibration", CALIBRATION_DIR))
    container = Container(image, new_container_name())
    command = container.run_command(argv, mounts)
    say("quantise", f"{PurePosixPath(argv[1]).name} in {image}")
    run_tool(
        PurePosixPath(argv[1]).name,
        command,
        container=container,
        work_dir=output,
        environment=os.environ,
        log=log,
        on_line=lambda _line: None,
    )
    shutil.rmtree(work)
    return command
