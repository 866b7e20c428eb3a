"""A program of TensorRT-LLM, here or in its container: run to its end, logged, its failure explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from trtb.build.child_process import ProcessEnd, run_program
from trtb.build.errors import CompileError
from trtb.build.trtllm.trtllm_container import Container
from trtb.build.trtllm.trtllm_log import explain, last_lines

# Choosing kernels of a large model for several sizes of step takes long without a word.
SILENCE_LIMIT_S = 2 * 3600.0
MAX_LOG_LINE = 10_000


def run_tool(
    name: str,
    command: Sequence[str],
    *,
    container: Container | None,
    work_dir: Path,
    environment: Mapping[str, str],
    log: IO[str],
    on_line: Callable[[str], None],
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> ProcessEnd:
    """Run a program, write each line of its output to the log as it comes, and return how it ended well.

    Raises:
        CompileError: It failed, was ended, or said nothing for too long.
    """

    def take(line: str) -> None:
        log.write(f"{line[:MAX_LOG_LINE]}\n")
        log.flush()
        on_line(line)

    try:
        end = run_program(
            command,
            work_dir=work_dir,
            on_line=take,
            environment=environment,
            silence_limit_s=silence_limit_s,
            end_also=container.kill_command() if container else (),
        )
    except FileNotFoundError as exc:
        raise CompileError(f"{name}: {exc}", "it was there when the build began; begin again") from exc
    if end.is_silenced:
        raise CompileError(
            f"{name}: said nothing for {silence_limit_s:g} s and was ended; its last lines:\n"
            f"{last_lines(end.tail)}",
            "look at the GPU with nvidia-smi: it may hang, or be shared with other work",
        )
    if end.status != 0:
        cause = explain(end)
        likely = f"; likely cause: {cause.what}" if cause else ""
        raise CompileError(
            f"{name}: {end.how}{likely}; its last lines:\n{last_lines(end.tail)}",
            cause.next_step if cause else "the whole output is in build.log",
        )
    return end
