"""Commands of an acceptance that are not started: each ends as it is told, and what it is sent is kept."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trtb.runner.acceptance.accept_step import StepFailedError


@dataclass
class FakeChild:
    """A command that ends with a code, having printed an object."""

    name: str = "a command"
    code: int | None = 0
    printed: Any = None
    pid: int = 4_000_000  # above what a system gives
    sent: list[signal.Signals] = field(default_factory=list)

    def poll(self) -> int | None:
        return self.code

    def told(self) -> Any:
        return self.printed

    def send(self, number: signal.Signals) -> None:
        self.sent.append(number)

    def wait(self, timeout_s: float) -> int:
        assert self.code is not None
        return self.code

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
        if not is_so():
            raise self.failure(f"ended before {what}")

    def failure(self, reason: str) -> StepFailedError:
        error = (self.printed or {}).get("error")
        if error:
            return StepFailedError(error["message"], error["hint"], error["code"], self.code)
        return StepFailedError(f"trtb {self.name}: {reason} with status {self.code}")

    def end(self) -> None:
        pass


@dataclass
class FakeCommands:
    """Gives its children one after the other; an error among them is raised."""

    children: list[FakeChild | Exception] = field(default_factory=list)
    started: list[tuple[object, ...]] = field(default_factory=list)
    is_closed: bool = False

    @property
    def pids(self) -> tuple[int, ...]:
        return (FakeChild.pid,) * len(self.started)

    def start(self, name: str, *arguments: object) -> FakeChild:
        self.started.append(arguments)
        child = self.children.pop(0)
        if isinstance(child, Exception):
            raise child
        return child

    def run(self, name: str, *arguments: object, timeout_s: float) -> Any:
        return self.start(name, *arguments).told()

    def close(self) -> None:
        self.is_closed = True
