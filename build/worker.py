"""run_worker(): a script runs under a toolchain's Python, and its one answer is a result or an error of ours.

torch, ModelOpt and optimum need versions of their own, so they never load into trtb's process. The script
gets the paths of a request and of the reply to write, prints progress as JSON lines on stdout, and ends;
`backends/workers/protocol.py` is its side of this. Whatever it does instead, it ends with us, leaves no
process behind, and costs no more than a bounded log.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypedDict

from pydantic import Field, TypeAdapter, ValidationError

from trtb.build import files
from trtb.build.child_process import ProcessEnd, run_program
from trtb.build.errors import (
    BuildError,
    CheckpointUnsupportedError,
    ConfigError,
    InsufficientMemoryError,
    ToolchainMissingError,
    TrtbError,
)
from trtb.build.manifest import Record

WORKERS = Path(__file__).parent / "backends" / "workers"
SILENCE_LIMIT_S = 6 * 3600.0  # one batch through a large model on a CPU takes long
MAX_LOG_CHARS = 64 << 20
NUM_TAIL_LINES = 12

_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",  # its threads and a fork do not agree
}


class WorkerReply(TypedDict):
    """What a worker made, and what it took."""

    result: dict[str, Any]
    versions: dict[str, str]  # every distribution of its environment
    peak_rss_bytes: int


class _Fault(Record):
    kind: Literal["unsupported", "invalid", "out_of_memory", "failed"]
    message: str
    hint: str = ""


class _Succeeded(Record):
    ok: Literal[True]
    result: dict[str, Any]
    versions: dict[str, str]
    peak_rss_bytes: Annotated[int, Field(ge=0)]


class _Refused(Record):
    ok: Literal[False]
    error: _Fault


_REPLY: TypeAdapter[_Succeeded | _Refused] = TypeAdapter(_Succeeded | _Refused)
_ERRORS: dict[str, type[TrtbError]] = {
    "unsupported": CheckpointUnsupportedError,
    "invalid": ConfigError,
    "out_of_memory": InsufficientMemoryError,
    "failed": BuildError,
}
_HINTS = {
    "out_of_memory": "stop other work, raise the container's memory limit, or choose a smaller model",
    "unsupported": "choose another checkpoint, backend or quantisation; trtb models list",
    "invalid": "correct what the message names, or fetch the checkpoint again",
    "failed": "check the toolchain (trtb toolchain verify) and the machine (trtb preflight), then try again",
}


def run_worker(
    python: Path,
    script: Path,
    request: Mapping[str, object],
    *,
    log: IO[str],
    on_progress: Callable[[str, str], None],
    work: Path,
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> WorkerReply:
    """Run a script under another Python, and return its reply.

    Args:
        python: The toolchain's.
        script: One of `backends/workers`.
        request: Becomes JSON.
        log: Gets all that the worker prints, progress apart, up to a bound.
        on_progress: Called with (step, detail) as the worker tells.
        work: A folder for the request, the reply, and everything temporary; made where it is missing.
        silence_limit_s: A worker that says nothing for so long is ended.

    Raises:
        CheckpointUnsupportedError, ConfigError, InsufficientMemoryError: The worker said so.
        BuildError: It failed, left no reply, or said nothing for too long.
        ToolchainMissingError: There is no such Python.
    """
    if not python.exists():
        raise ToolchainMissingError(
            f"{python}: not found; expected the Python of a toolchain", "trtb toolchain list"
        )
    work = work.absolute()  # the worker runs in it
    work.mkdir(parents=True, exist_ok=True)
    request_path, reply_path = work / "request.json", work / "reply.json"
    reply_path.unlink(missing_ok=True)
    files.write_atomic(request_path, json.dumps(request).encode())
    output = _Output(log, on_progress)
    # -E -s: no package but the toolchain's; -u: told when it is printed; -B: leave the scripts' folder alone
    command = [python, "-E", "-s", "-u", "-B", script.absolute(), request_path, reply_path]
    ended = run_program(
        [str(part) for part in command],
        work_dir=work,
        on_line=output,
        environment=worker_environment(work),
        silence_limit_s=silence_limit_s,
        is_done=reply_path.exists,
    )
    return _take(script.name, reply_path, ended, output, getattr(log, "name", ""))


def worker_environment(work: Path) -> dict[str, str]:
    """Return the environment of a worker: no network, no telemetry, every file that it makes below `work`."""
    temporary, cache = work / "tmp", work / "cache"
    for folder in (temporary, cache):
        folder.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    return {
        # what the user has set wins
        "OMP_NUM_THREADS": str(num_usable_cores()),
        "OMP_WAIT_POLICY": "PASSIVE",  # idle threads that spin slow a busy machine several times over
        **kept,
        **_QUIET,
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(cache),
        "HF_HOME": str(cache / "huggingface"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }


def num_usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores that our affinity and our container's quota leave."""
    num_cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, min(num_cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no control group, or no limit: "max"
        return num_cores


def _take(name: str, reply_path: Path, ended: ProcessEnd, output: _Output, log_path: str) -> WorkerReply:
    failed = f"read {log_path}, then: {_HINTS['failed']}" if log_path else _HINTS["failed"]
    try:
        reply = _REPLY.validate_json(reply_path.read_bytes())
    except FileNotFoundError as exc:
        raise BuildError(
            f"{name}: {_how_ended(ended)} without a reply; its last lines:\n{output.tail()}",
            _HINTS["out_of_memory"] if ended.status == -signal.SIGKILL else failed,
        ) from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise BuildError(
            f"{name}: {_how_ended(ended)} with a reply that is none ({first['msg']}); "
            f"its last lines:\n{output.tail()}",
            failed,
        ) from exc
    if isinstance(reply, _Refused):
        error = reply.error
        hint = failed if error.kind == "failed" else _HINTS[error.kind]
        raise _ERRORS[error.kind](f"{name}: {error.message}", error.hint or hint)
    return WorkerReply(result=reply.result, versions=reply.versions, peak_rss_bytes=reply.peak_rss_bytes)


def _how_ended(ended: ProcessEnd) -> str:
    if ended.is_silenced:
        return "said nothing for too long and was ended"
    if ended.status == -signal.SIGKILL:
        return f"{ended.how}, most likely by the kernel because memory ran out,"
    return ended.how


class _Output:
    """Sorts what a worker prints: progress is told, all else logged, its end kept."""

    def __init__(self, log: IO[str], on_progress: Callable[[str, str], None]) -> None:
        self._log = log
        self._on_progress = on_progress
        self._num_chars_left = MAX_LOG_CHARS
        self._tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)

    def __call__(self, line: str) -> None:
        if (told := _parse_progress(line)) is not None:
            self._on_progress(*told)
            return
        self._tail.append(line[:300])
        if self._num_chars_left > 0:
            self._num_chars_left -= len(line) + 1
            self._log.write(f"{line}\n")
            if self._num_chars_left <= 0:
                self._log.write("(the rest of what this worker printed is left out)\n")
            self._log.flush()

    def tail(self) -> str:
        """Return the last lines that were no progress."""
        return "\n".join(f"  {line}" for line in self._tail) or "  (it printed nothing)"


def _parse_progress(line: str) -> tuple[str, str] | None:
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if set(told) != {"step", "detail"}:
        return None
    return str(told["step"]), str(told["detail"])
