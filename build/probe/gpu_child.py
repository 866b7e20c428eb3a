"""The process that asks the NVIDIA driver: started, watched, and left behind where it cannot be ended.

Each answer has a deadline of its own, not the whole: a machine of many GPUs takes long and is well, one
answer that does not come means that the driver hangs.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Final

from trtb.build.probe.cgroups import read_text
from trtb.build.probe.hardware_info import GpuReport

_CHILD: Final = "from trtb.build.hardware import tell_gpus; tell_gpus()"
_START_TIMEOUT_S: Final = 60.0  # Python's own start, from a slow disk
_END_TIMEOUT_S: Final = 2.0
_MAX_NOISE: Final = 300  # characters of what a failing child said

# a process stuck in the kernel outlives SIGKILL; it stays here so that nothing waits for it
_left_behind: list[subprocess.Popen[bytes]] = []


def ask_child(*, root: Path, answer_timeout_s: float) -> GpuReport:
    """Return what a child process learns from NVML, and what kept it from learning more."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",  # in a checkout, `build` would be found twice
    )
    assert process.stdout
    in_time = False
    try:
        told, in_time = _read_until_late(process.stdout, answer_timeout_s)
    finally:
        _end(process, patience_s=_END_TIMEOUT_S if in_time else 0)
    ending = f"no answer within {answer_timeout_s:g} s" if not in_time else _death(process.returncode)
    return make_report(told, "failed" if in_time else "timeout", ending, kernel_module_version(root))


def make_report(told: bytes, kind: str, ending: str, kernel_module: str | None) -> GpuReport:
    """Return the records of what a child told; `kind` and `ending` say how it ended, if it did not say so."""
    driver = dict.fromkeys(("driver_version", "cuda_version", "nvml_version"))
    lists: dict[str, list[Any]] = {"gpu": [], "peer": [], "problem": []}
    num_gpus, asked, is_whole, noise = None, "NVML", False, ""
    for line in told.decode(errors="replace").splitlines():
        name, value = _parse(line)
        if name in lists:
            lists[name].append(value)
        elif name == "driver":
            driver = value
        elif name == "num_gpus":
            num_gpus = value
        elif name == "ask":
            asked = value
        elif name == "end":
            is_whole = True
        else:
            noise = line.strip() or noise
    if not is_whole:
        why = f"{ending}; nothing after it was asked" + (f"; it said: {noise[-_MAX_NOISE:]}" if noise else "")
        lists["problem"].append({"what": asked, "why": why, "kind": kind})
    report = {
        "driver": {**driver, "kernel_module_version": kernel_module},
        "num_gpus": num_gpus,
        "gpus": lists["gpu"],
        "peers": lists["peer"],
        "problems": lists["problem"],
    }
    return GpuReport.model_validate_json(json.dumps(report))


def kernel_module_version(root: Path) -> str | None:
    """Return the version of the NVIDIA kernel module that is loaded, which needs no library."""
    text = read_text(root / "proc/driver/nvidia/version")
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def _parse(line: str) -> tuple[str, Any]:
    """Return the kind and value of a child's line; the kind is "" where a library wrote the line."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return "", None
    return next(iter(parsed.items())) if isinstance(parsed, dict) and len(parsed) == 1 else ("", None)


def _read_until_late(stream: IO[bytes], answer_timeout_s: float) -> tuple[bytes, bool]:
    """Return what was written, and whether the writer closed its end before one answer was late."""
    told = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while selector.select(answer_timeout_s if told else _START_TIMEOUT_S):
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return bytes(told), True
            told += chunk
    return bytes(told), False


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Give the child `patience_s` to end by itself, then kill it, and wait no longer than a moment."""
    assert process.stdout
    process.stdout.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _left_behind.append(process)


def _death(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"the driver's library ended its process with {signal.Signals(-returncode).name}"
    return f"the process that asked ended with exit code {returncode}"
