"""What a worker script and trtb say to each other: one request read, progress told, one reply written.

A worker runs under the Python of a toolchain, where trtb is not installed, so this needs the standard
library only. A script imports it before anything else:

    import protocol

    def main(request, progress):
        progress("load", "reading the weights")
        ...
        return {"figure": 1.0}

    if __name__ == "__main__":
        protocol.run(main)

The script gets two paths, of the request that exists and of the reply that `run` writes. What the
libraries print on stdout goes to stderr: stdout carries progress alone, a JSON object a line.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

# nncf and openvino's converters send usage events to a third party as soon as they are imported, unless
# this import fails
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

# The scripts' own folder comes first on the path, where modelopt.py would hide the library of that name;
# last, it still serves the scripts that import each other.
_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 (spelled as the interpreter spells it)
sys.path[:] = [*(entry for entry in sys.path if entry != _FOLDER), _FOLDER]

MAX_DETAIL_CHARS = 300

Progress = Callable[[str, str], None]  # (step, detail)

UNSUPPORTED = "unsupported"  # the checkpoint is sound, and the libraries cannot do it
INVALID = "invalid"  # the request, or what it names, is wrong
OUT_OF_MEMORY = "out_of_memory"
FAILED = "failed"

# How torch and the C++ libraries say that memory ran out, where they have no class of their own for it.
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")

# likewise that the disk is full
_DISK_FULL_TEXTS = ("no space left on device", "os error 28", "disk quota exceeded")
DISK_FULL_HINT = "the disk is full: free space below TRTB_HOME, or point TRTB_HOME at a larger disk"


class WorkerError(Exception):
    """An answer that is no result: its kind, what was found, and the next step."""

    kind = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint


class UnsupportedError(WorkerError):
    """The checkpoint is sound, and the libraries cannot do what was asked of it."""

    kind = UNSUPPORTED


class InvalidError(WorkerError):
    """The request, or what it names, is wrong."""

    kind = INVALID


def run(main: Callable[[dict[str, Any], Progress], dict[str, Any]]) -> None:
    """Read the request, call `main` with it, and write its result, or what went wrong, as the reply.

    The one place in a worker that catches every exception: its class, message and last frame go into the
    reply, the whole traceback to the log. The process ends with status 0 whenever it leaves a reply.
    """
    request_path, reply_path = map(Path, sys.argv[1:3])
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def progress(step: str, detail: str) -> None:
        # stderr shares the pipe: a line that it has begun ends here; so short a write is not divided
        told.write("\n" + json.dumps({"step": step, "detail": str(detail)[:MAX_DETAIL_CHARS]}) + "\n")
        told.flush()

    try:
        installed = versions()  # now: an imported library may put its own copies of others on the path
        result = main(json.loads(request_path.read_bytes()), progress)
        reply = {"ok": True, "result": result, "versions": installed, "peak_rss_bytes": peak_rss_bytes()}
        data = json.dumps(reply)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 (the boundary of the process)
        traceback.print_exc()
        data = json.dumps({"ok": False, "error": describe(exc)})
    part = reply_path.with_suffix(".part")
    part.write_text(data, encoding="utf-8")
    part.replace(reply_path)


def describe(error: BaseException) -> dict[str, str]:
    """Return an exception as the `error` of a reply."""
    if isinstance(error, WorkerError):
        return {"kind": error.kind, "message": error.message, "hint": error.hint}
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    message = f"{type(error).__name__}: {text or 'no message'}{where}"
    return {"kind": _kind(error, text.lower()), "message": message, "hint": _hint(error, text.lower())}


def _hint(error: BaseException, text: str) -> str:
    """Return the next step where the disk is full: libraries in C++ and Rust tell of it in words alone."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return DISK_FULL_HINT if is_full or any(known in text for known in _DISK_FULL_TEXTS) else ""


def _kind(error: BaseException, text: str) -> str:
    # torch.OutOfMemoryError by its name: torch is not imported here
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and any(known in text for known in _OUT_OF_MEMORY_TEXTS):
        return OUT_OF_MEMORY
    return UNSUPPORTED if isinstance(error, NotImplementedError) else FAILED


def versions() -> dict[str, str]:
    """Return the version of every distribution that this Python finds."""
    found: dict[str, str] = {}
    for item in metadata.distributions():
        if name := item.metadata["Name"]:
            found.setdefault(name, item.version)  # the first on the path is the one that is imported
    return dict(sorted(found.items()))


def peak_rss_bytes() -> int:
    """Return the most memory that this process, or the largest of its ended children, has held.

    From /proc: the figure of getrusage begins with that of the process that started this one.
    """
    own = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            own = int(line.split()[1]) * 1024
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
