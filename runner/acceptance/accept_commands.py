"""The trtb command as child processes: an acceptance goes the road that a user goes, commands and all.

A child has a session of its own, so that a Ctrl-C in the terminal is ours to handle, and dies with us, so
that a kill of ours leaves no server behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from trtb.build.child_process import DIE_WITH_PARENT
from trtb.runner.acceptance.accept_step import StepFailedError

POLL_S: Final = 0.01
END_TIMEOUT_S: Final = 60.0  # of a child that is told to end: a server drains
LOG_TAIL_LINES: Final = 8


class Child:
    """One command that was started; its stdout and stderr go to files."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], stdout: Path, log: Path) -> None:
        self.name = name
        self._process = process
        self._stdout = stdout
        self._log = log

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._process.poll()

    def told(self) -> Any:
        """Return the one JSON object that it printed; None where it is not there, or not whole."""
        try:
            return json.loads(self._stdout.read_bytes())
        except ValueError:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Return its exit code once it has ended.

        Raises:
            StepFailedError: It has not, in time.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise StepFailedError(f"trtb {self.name}: not done after {timeout_s:g} s") from None

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Return once something is so, while the child runs.

        Raises:
            StepFailedError: The child ended before, or it is not so in time.
        """
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if self.poll() is not None:
                raise self.failure(f"ended before {what}")
            if time.monotonic() > deadline:
                raise StepFailedError(f"trtb {self.name}: not within {timeout_s:g} s: {what}")
            time.sleep(POLL_S)

    def failure(self, reason: str) -> StepFailedError:
        """Return an error that says why the child failed: its own error, or the end of its log."""
        code = self.poll()
        told = self.told()
        error = told.get("error") if isinstance(told, dict) else None
        if isinstance(error, dict):
            message = f"trtb {self.name}: {error['message']}"
            exit_code = code if code and code > 0 else None
            return StepFailedError(message, error["hint"], error["code"], exit_code)
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        status = "" if code is None else f" with status {code}"
        lines = "".join(f"\n  {line}" for line in tail)
        return StepFailedError(f"trtb {self.name}: {reason}{status}{lines}")

    def end(self) -> None:
        """End it, if it runs: as a Ctrl-C does, then by force."""
        if self.poll() is not None:
            return
        try:
            self.send(signal.SIGINT)
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also where a second Ctrl-C ends the wait
            if self.poll() is None:
                self._process.kill()
                self._process.wait()


class Commands:
    """Starts commands in one home; `close` ends whatever is left of them.

    Args:
        trtb: How trtb is called.
        home: The TRTB_HOME of the commands.
        work_dir: Where they run and their logs lie.
    """

    def __init__(self, trtb: Sequence[str], home: Path, work_dir: Path) -> None:
        self._trtb = tuple(trtb)
        self._home = home
        self._work_dir = work_dir
        self._children: list[Child] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all that were started."""
        return tuple(child.pid for child in self._children)

    def start(self, name: str, *arguments: object) -> Child:
        """Start a command; `name` is what it is called in messages and on disk."""
        stem = f"{len(self._children):02}-{name.replace(' ', '-')}"
        stdout, log = self._work_dir / f"{stem}.json", self._work_dir / f"{stem}.log"
        launcher = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
        with stdout.open("wb") as output, log.open("wb") as errors:
            process = subprocess.Popen(
                [*launcher, *self._trtb, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, "TRTB_HOME": str(self._home)},
                cwd=self._work_dir,
                start_new_session=True,
            )
        child = Child(name, process, stdout, log)
        self._children.append(child)
        return child

    def run(self, name: str, *arguments: object, timeout_s: float) -> Any:
        """Run a command to its end; returns the JSON object that it printed.

        Raises:
            StepFailedError: It did not end well, or not in time.
        """
        child = self.start(name, *arguments)
        code = child.wait(timeout_s)
        told = child.told()
        if code or told is None:
            raise child.failure("ended")
        return told

    def close(self) -> None:
        """End all that still runs."""
        with contextlib.ExitStack() as stack:
            for child in self._children:
                stack.callback(child.end)
