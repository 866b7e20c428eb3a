"""compile_engine(): trtllm-build turns a verified checkpoint into an engine that is what was asked for.

It works in a folder of its own, since trtllm-build leaves a cache of timings where it is started, and that
is no part of an engine. What is compiled depends on the GPU that compiles: an engine is for its own kind.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

from trtb.build.errors import CompileError, ConfigError, HardwareError
from trtb.build.manifest import GpuRecord, Record
from trtb.build.trtllm.trtllm_compiler import Compiler, compiler_environment
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
from trtb.build.trtllm.trtllm_engine import EngineFolder, verify_engine
from trtb.build.trtllm.trtllm_log import BuildLog, Progress
from trtb.build.trtllm.trtllm_options import PREFIX, TrtllmOptions, render_argv
from trtb.build.trtllm.trtllm_run import SILENCE_LIMIT_S, run_tool

CACHE_VARIABLES = ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")


class CompileRecord(Record):
    """How an engine was compiled."""

    command: list[str]
    image: str | None
    versions: dict[str, str]
    gpu: GpuRecord | None
    duration_s: float
    peak_host_bytes: int
    peak_device_bytes: int  # as TensorRT says; 0 where it did not
    engine: EngineFolder
    notes: list[str]  # trtllm-build's own words on what it changed


@dataclass(frozen=True, slots=True)
class _Places:
    """The folders of a compilation as the compiler sees them, and the command that they make."""

    command: list[str]
    container: Container | None


def compile_command(compiler: Compiler, options: TrtllmOptions, checkpoint: Path, output: Path) -> list[str]:
    """Return the command that compiles, as `compile_engine` would run it.

    Raises:
        ConfigError: A file or folder that an option names is not there.
    """
    return _place(compiler, options, checkpoint, output, "trtb-build").command


def compile_engine(
    compiler: Compiler,
    options: TrtllmOptions,
    checkpoint: Path,
    output: Path,
    *,
    log: IO[str],
    say: Progress,
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> CompileRecord:
    """Fill `output`, an empty folder, with an engine, verified.

    Args:
        compiler: Where it is compiled, as `find_compiler` found it.
        options: Every option, checked against the checkpoint and the compiler's GPU.
        checkpoint: A verified TensorRT-LLM checkpoint; it is only read.
        output: On success it holds the engine and nothing else; on an error its content is undefined.
        log: Gets the compiler's whole output as it comes.
        say: Called with ("compile", detail) as the compilation goes on.
        silence_limit_s: A compiler that says nothing for so long is ended.

    Raises:
        CompileError: The compiler failed, or its engine is not what was asked for.
        ConfigError: A file or folder that an option names is not there.
        HardwareError: The ranks would be compiled on different kinds of GPU.
    """
    assert not any(output.iterdir())
    config = _read_checkpoint_config(checkpoint)
    world_size = int(config["mapping"]["world_size"])
    _check_gpus(compiler, options.workers)
    work = output / WORK_FOLDER
    work.mkdir()
    places = _place(compiler, options, checkpoint, output, new_container_name())
    build_log = BuildLog(say, world_size)
    say("compile", f"trtllm-build, {world_size} rank(s)")
    end = run_tool(
        "trtllm-build",
        places.command,
        container=places.container,
        work_dir=work,
        environment={**compiler_environment(), **dict.fromkeys(CACHE_VARIABLES, str(work / "cache"))},
        log=log,
        on_line=build_log.read,
        silence_limit_s=silence_limit_s,
    )
    shutil.rmtree(work)
    # of a container's memory we see its client's alone
    peak_rss_bytes = 0 if places.container else end.peak_rss_bytes
    return CompileRecord(
        command=places.command,
        image=compiler.image,
        versions=compiler.versions,
        gpu=compiler.gpus[0] if compiler.gpus else None,
        duration_s=end.duration_s,
        peak_host_bytes=max(build_log.peak_host_bytes, peak_rss_bytes),
        peak_device_bytes=build_log.peak_device_bytes,
        engine=verify_engine(output, options, compiler.versions["tensorrt_llm"], config),
        notes=build_log.adjustments,
    )


def _read_checkpoint_config(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / "config.json"
    try:
        config = json.loads(path.read_bytes())
        if int(config["mapping"]["world_size"]) < 1:
            raise ValueError("world_size")
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CompileError(
            f"{path}: {type(exc).__name__}: {exc}; expected the config.json of a TensorRT-LLM checkpoint"
        ) from exc
    return dict(config)


def _check_gpus(compiler: Compiler, num_workers: int) -> None:
    used = compiler.gpus[:num_workers]
    kinds = sorted({f"{gpu.name} ({gpu.compute_capability})" for gpu in used})
    if len(kinds) > 1:
        raise HardwareError(
            f"workers: {num_workers}, on {' and '.join(kinds)}; expected GPUs of one kind",
            "choose GPUs of one kind with CUDA_VISIBLE_DEVICES, or set --trtllm-option workers=1",
        )


def _place(compiler: Compiler, options: TrtllmOptions, checkpoint: Path, output: Path, name: str) -> _Places:
    container = Container(compiler.image, name) if compiler.image else None
    options, extra = _place_files(options, in_container=container is not None)
    checkpoint_dir: PurePath = CHECKPOINT_DIR if container else checkpoint.absolute()
    output_dir: PurePath = OUTPUT_DIR if container else output.absolute()
    mounts = [
        Mount(checkpoint, CHECKPOINT_DIR),
        Mount(output, OUTPUT_DIR, is_writable=True),
        Mount(output / WORK_FOLDER, WORK_DIR, is_writable=True),
        *extra,
    ]
    argv = render_argv(options, checkpoint_dir, output_dir)
    return _Places(compiler.command(argv, mounts, container), container)


def _place_files(options: TrtllmOptions, *, in_container: bool) -> tuple[TrtllmOptions, list[Mount]]:
    """Return the options with the paths that the compiler sees, and what it must be shown for them."""
    mounts: list[Mount] = []

    def place(name: str, given: str, target: PurePath) -> str:
        path = Path(given).expanduser().absolute()
        if not path.exists():
            raise ConfigError(f"{PREFIX} {name}: {path}: not found")
        mounts.append(Mount(path, target))
        return str(target if in_container else path)

    changed: dict[str, Any] = {
        "lora_dir": tuple(
            place("lora_dir", given, EXTRA_DIR / "lora" / str(index))
            for index, given in enumerate(options.lora_dir)
        )
    }
    if options.input_timing_cache is not None:
        target = EXTRA_DIR / "timing.cache"
        changed["input_timing_cache"] = place("input_timing_cache", options.input_timing_cache, target)
    return options.model_copy(update=changed), mounts
