"""The steps of an acceptance: run in order, each needs others, and every one of them ends with a word.

A step that fails ends only those that need it; the rest is still worth knowing on a machine that somebody
has reserved for this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from trtb.build.errors import TrtbError
from trtb.runner.acceptance.accept_evidence import StepEvidence
from trtb.runner.errors import RequestError, RunInterruptedError

Figures = dict[str, JsonValue]


class StepFailedError(TrtbError):
    """What a step saw is not what it expected, or a command that it started failed.

    `command_code` and `command_exit_code` are those of the command, None where the step itself found fault.
    """

    code = "acceptance_failed"
    exit_code = 1

    def __init__(
        self,
        message: str,
        hint: str = "",
        command_code: str | None = None,
        command_exit_code: int | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, command_code, command_exit_code)
        self.command_code = command_code
        self.command_exit_code = command_exit_code


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The step has no answer here: neither proved nor refuted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `work` fills in its figures as it goes, and what it raises fails it."""

    name: str
    work: Callable[[Figures], NotApplicable | None]
    exit_code: int  # of the acceptance, where what this step saw is not what it expected
    needs: tuple[str, ...] = ()  # steps that must not have failed


@dataclass(slots=True)
class StepRunner:
    """Runs steps one after the other, and keeps what became of each.

    Args:
        on_begin: Hears a step's name before it begins.
        on_end: Hears what became of it.
    """

    on_begin: Callable[[str], None]
    on_end: Callable[[StepEvidence], None]
    done: list[StepEvidence] = field(default_factory=list)
    _is_interrupted: bool = False  # since the last step ended

    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps; an interrupt ends them all, and is recorded.

        Raises:
            Exception: A bug of ours; the step is recorded as failed by it.
        """
        for step in steps:
            self._run(step)

    def _run(self, step: Step) -> None:
        try:
            self._run_or_refuse(step)
        except KeyboardInterrupt:  # outside of the work: while it was told of, or written down
            if step.name in [record.name for record in self.done]:
                self._is_interrupted = True
            else:
                self.done.append(_interrupted(step.name))

    def _run_or_refuse(self, step: Step) -> None:
        if self._is_interrupted:  # between two steps: the second one has it
            self._is_interrupted = False
            self._keep(_interrupted(step.name))
            return
        if reason := self._hindrance(step):
            self._keep(StepEvidence(name=step.name, result="not_run", reason=reason))
            return
        self.on_begin(step.name)
        figures: Figures = {}
        started = time.monotonic()
        try:
            outcome = step.work(figures)
        except BaseException as exc:
            self._keep(_ended_by(step, exc, figures, time.monotonic() - started))
            if not isinstance(exc, (TrtbError, KeyboardInterrupt)):
                raise
            return
        self._keep(
            StepEvidence(
                name=step.name,
                result="not_applicable" if outcome else "passed",
                reason=outcome.reason if outcome else "",
                duration_s=_rounded(time.monotonic() - started),
                figures=figures,
            )
        )

    def _hindrance(self, step: Step) -> str:
        """Return why a step is not run; empty where it is."""
        ended = {record.name: record.result for record in self.done}
        if "interrupted" in ended.values():
            return "interrupted"
        return next(
            (f"needs {name}, which {_TOLD[ended[name]]}" for name in step.needs if ended[name] in _TOLD), ""
        )

    def _keep(self, record: StepEvidence) -> None:
        self.done.append(record)
        self.on_end(record)


_TOLD = {"failed": "failed", "not_run": "was not run"}


def _ended_by(step: Step, exc: BaseException, figures: Figures, duration_s: float) -> StepEvidence:
    """Return what became of a step that an exception ended."""
    if isinstance(exc, (KeyboardInterrupt, RunInterruptedError)):
        return _interrupted(step.name, duration_s=_rounded(duration_s), figures=figures)
    record = StepEvidence(
        name=step.name, result="failed", duration_s=_rounded(duration_s), figures=figures, exit_code=70
    )
    if isinstance(exc, TrtbError):
        record.reason, record.hint, record.code = exc.message, exc.hint, exc.code
        record.exit_code = exc.exit_code
        if isinstance(exc, StepFailedError):
            record.code = exc.command_code or exc.code
            record.exit_code = exc.command_exit_code or step.exit_code
        elif isinstance(exc, RequestError):  # it has no exit code of its own: one line's failure is data
            record.exit_code = step.exit_code
    else:
        record.reason, record.code = f"a bug in trtb: {type(exc).__name__}: {exc}", TrtbError.code
    return record


def _interrupted(name: str, **fields: Any) -> StepEvidence:
    return StepEvidence(
        name=name,
        result="interrupted",
        reason="interrupted",
        exit_code=RunInterruptedError.exit_code,
        **fields,
    )


def _rounded(duration_s: float) -> float:
    return round(duration_s, 3)
