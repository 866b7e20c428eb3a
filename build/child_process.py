"""A program run to its end: its output handed on line by line, its group ended with us, its peak memory.

Its group also ends when this process is killed outright: the kernel kills the program itself, and a guard,
which notices that the pipe from us closed without a word, kills what the program started, and whatever
else is named to it (a container outlives its client).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TAIL_LINES = 400
MAX_LINE_BYTES = 1 << 16  # a longer line, a binary's say, is handed on in parts
GRACE_S = 10.0  # between being asked to end and being killed
POLL_S = 0.5
# Started through this, a process dies with the one that started it; exec keeps the setting. The check of
# the parent closes the gap between fork and prctl.
DIE_WITH_PARENT = (
    "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
# What a program started does not always notice that the program is gone: the interpreter lock of an engine's
# process may be held in a step that does not return. This guard kills the whole group when the pipe from its
# starter closes without a word, which is what a kill -9 of the starter does; and runs what ends a container,
# which outlives its client.
GUARD = (
    "import contextlib,os,subprocess,sys\n"
    "if not os.read(0, 1):\n"
    "    with contextlib.suppress(ProcessLookupError): os.killpg(int(sys.argv[1]), 9)\n"
    "    if sys.argv[2:]: subprocess.run(sys.argv[2:], stdout=-3, stderr=-3)"
)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a program ended."""

    status: int  # negative: the signal that ended it
    tail: tuple[str, ...]  # its last lines of output
    peak_rss_bytes: int  # of its largest process; no less than ours when it was started
    duration_s: float
    is_silenced: bool = False  # it said nothing for too long and was ended

    @property
    def how(self) -> str:
        """Say how it ended, as a person would."""
        if self.status >= 0:
            return f"ended with status {self.status}"
        with contextlib.suppress(ValueError):
            return f"was ended by signal {-self.status} ({signal.Signals(-self.status).name})"
        return f"was ended by signal {-self.status}"


def run_program(
    command: Sequence[str],
    *,
    work_dir: Path,
    on_line: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    silence_limit_s: float,
    end_also: Sequence[str] = (),
    is_done: Callable[[], bool] | None = None,
) -> ProcessEnd:
    """Run a program and return how it ended; on an error of ours, Ctrl-C included, it is ended first.

    Call it from the process's main thread, whose end is the program's end.

    Args:
        command: The program and its arguments.
        work_dir: The folder it starts in.
        on_line: Hears of each line of its output and errors, without the end of the line.
        environment: The whole environment; by default ours.
        silence_limit_s: Without a word for so long, it is ended.
        end_also: A command that ends what is no child of the program: run wherever the program is ended.
        is_done: Says that the program has done its work although it runs; `GRACE_S` later it is ended.

    Raises:
        OSError: There is no such program, or it cannot be run.
    """
    program = shutil.which(command[0], path=(environment or os.environ).get("PATH"))
    if program is None:
        raise FileNotFoundError(f"{command[0]}: no such program")
    launcher = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
    started_ns = time.monotonic_ns()
    with (
        subprocess.Popen(
            [*launcher, str(Path(program).absolute()), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work_dir,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        ) as process,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, str(process.pid), *end_also],
            stdin=subprocess.PIPE,
            start_new_session=True,
        ) as guard,
    ):
        assert process.stdout
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            is_silenced = not _read_lines(process, on_line, tail, silence_limit_s, is_done)
        except BaseException:
            _end(process.pid, end_also)
            _wait(process)
            raise
        finally:
            guard.communicate(b"q")
        _end(process.pid, end_also if is_silenced else ())  # it, or what it left behind in its group
        peak_rss_bytes = _wait(process)
    return ProcessEnd(
        status=process.returncode,
        tail=tuple(tail),
        peak_rss_bytes=peak_rss_bytes,
        duration_s=(time.monotonic_ns() - started_ns) / 1e9,
        is_silenced=is_silenced,
    )


def _read_lines(
    process: subprocess.Popen[bytes],
    on_line: Callable[[str], None],
    tail: deque[str],
    silence_limit_s: float,
    is_done: Callable[[], bool] | None,
) -> bool:
    """Hand on the output until the program has ended; return False on too long a silence."""
    assert process.stdout
    fd = process.stdout.fileno()
    rest = b""
    last_word = time.monotonic()
    watched = [fd]
    done_at: float | None = None
    while True:
        if done_at is None and is_done is not None and is_done():
            done_at = time.monotonic()
        is_overdue = done_at is not None and time.monotonic() - done_at > GRACE_S
        wait_s = min(POLL_S if watched else POLL_S / 10, silence_limit_s)
        if select.select(watched, [], [], wait_s)[0]:
            chunk = os.read(fd, MAX_LINE_BYTES)
            if not chunk:
                watched = []  # it has closed its output, most likely because it ends
            last_word = time.monotonic()
            *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                _hand_on(line, on_line, tail)
            if watched and not is_overdue:
                continue
        has_ended = _has_ended(process.pid)  # a stray child may still hold the pipe
        if has_ended or is_overdue or time.monotonic() - last_word > silence_limit_s:
            _hand_on(rest, on_line, tail)
            return has_ended or is_overdue


def _hand_on(line: bytes, on_line: Callable[[str], None], tail: deque[str]) -> None:
    if text := line.decode(errors="replace").rstrip():
        tail.append(text)
        on_line(text)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(group: int, end_also: Sequence[str]) -> None:
    """End a group of processes, politely at first; the group's leader is not waited for yet."""
    if end_also:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(end_also, check=False, capture_output=True, timeout=60)
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 0.0)):
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not _is_only_a_zombie(group):
            time.sleep(0.02)


def _is_only_a_zombie(group: int) -> bool:
    """Return whether nothing of the group runs; the leader stays until it is waited for."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            state, _, member_of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(member_of) == group and state != "Z":
                return False
    return True


def _wait(process: subprocess.Popen[bytes]) -> int:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024
