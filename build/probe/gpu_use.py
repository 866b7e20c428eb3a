"""How busy the GPUs are, asked again and again, of a process that stays.

As in `gpu_child`, NVML is asked in a process of its own: a wedged driver blocks its caller for ever. The
child answers each line of its stdin with one of its stdout, and ends when its stdin does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Final

_CHILD: Final = "from trtb.build.hardware import tell_gpu_use; tell_gpu_use()"
ANSWER_TIMEOUT_S: Final = 20.0  # the first answer comes after the start of Python and of the driver
_END_TIMEOUT_S: Final = 2.0
_CHUNK_BYTES: Final = 1 << 16

# a process stuck in the kernel outlives SIGKILL; it stays here so that nothing waits for it
_left_behind: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU; None where it does not tell."""

    index: int
    busy_fraction: float | None = None  # of the last moments, in which some kernel ran
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None


class GpuWatch:
    """The process that asks; one thread uses it at a time.

    Without a GPU, a driver, or an answer in time, there is nothing to see, from then on.
    """

    def __init__(self, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._answer_timeout_s = answer_timeout_s
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",  # in a checkout, `build` would be found twice
            start_new_session=True,  # a Ctrl-C in the terminal is the client's to handle
        )

    def read(self) -> tuple[GpuUse, ...]:
        """Return the use of every GPU now; waits for the driver, for a bounded time."""
        process = self._process
        if process is None:
            return ()
        assert process.stdin
        try:
            process.stdin.write(b"\n")
        except OSError:  # it has ended: nothing is to be asked here
            self.close()
            return ()
        line = self._read_line(process)
        try:
            found: list[dict[str, Any]] = json.loads(line)
        except ValueError:
            self.close()
            return ()
        return tuple(GpuUse(**gpu) for gpu in found)

    def interrupt(self) -> None:
        """End the process from any thread; a `read` that waits for it returns."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process, and wait no longer than a moment; no `read` is under way."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        process.stdout.close()
        process.kill()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _left_behind.append(process)

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return a line; an incomplete one where it does not come in time, or the process has ended."""
        assert process.stdout
        told = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not told.endswith(b"\n") and selector.select(self._answer_timeout_s):
                chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
                if not chunk:
                    break
                told += chunk
        return bytes(told) if told.endswith(b"\n") else b""


def answer_lines(nvml: Any) -> None:
    """Answer each line of stdin with the use of every GPU, a JSON array; the child's whole work."""
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return
    for _ in sys.stdin:
        found = [dataclasses.asdict(use_of(nvml, index, handle)) for index, handle in enumerate(handles)]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def use_of(nvml: Any, index: int, handle: Any) -> GpuUse:
    """Return what one GPU tells; what it does not, as a slice of one does not its use, is None."""

    def ask(question: Any) -> Any:
        try:
            return question(handle)
        except nvml.NVMLError:
            return None

    rates, memory = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetMemoryInfo)
    milliwatts = ask(nvml.nvmlDeviceGetPowerUsage)
    return GpuUse(
        index,
        busy_fraction=None if rates is None else rates.gpu / 100,
        memory_used_bytes=None if memory is None else memory.total - memory.free,
        memory_total_bytes=None if memory is None else memory.total,
        power_w=None if milliwatts is None else milliwatts / 1000,
    )
