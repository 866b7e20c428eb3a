"""The errors of a run, and those of one request.

A `RequestError` never leaves the run: it becomes a failure line of the output. Everything else ends the
run, with the exit code of its class.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trtb.build.errors import TrtbError

if TYPE_CHECKING:
    from trtb.runner.validate import ValidationReport


class InputFileError(TrtbError):
    """The input file is refused; nothing was run."""

    code = "input_refused"
    exit_code = 3


class InputNotFoundError(InputFileError):
    """There is no readable input file at that path."""

    code = "input_not_found"


class InputRefusedError(InputFileError):
    """The file has faults; `report` holds them. Nothing was run."""

    def __init__(self, path: Path, report: ValidationReport) -> None:
        named = ", ".join(f"{count} {code}" for code, count in report.codes.most_common())
        super().__init__(
            f"{path}: {report.invalid} of {report.total} lines cannot be run ({named}); nothing was run",
            "mend them, or let them fail and run the rest: --on-invalid fail",
        )
        self.args = (path, report)
        self.path = path
        self.report = report


class OutputExistsError(TrtbError):
    """The output path is taken, or would overwrite the input."""

    code = "output_exists"
    exit_code = 2


class ServerError(TrtbError):
    """The inference server is the trouble."""

    code = "server_error"
    exit_code = 6


class ServerStartError(ServerError):
    """The server did not start, or did not become ready."""

    code = "server_start_failed"


class ServerLostError(ServerError):
    """The server went away and did not come back; everything done so far is on disk."""

    code = "server_lost"


class ContractMismatchError(ServerError):
    """The server's model lacks a tensor of the contract, or declares it otherwise."""

    code = "contract_mismatch"


class LedgerError(TrtbError):
    """The ledger cannot be used."""

    code = "ledger_error"
    exit_code = 7


class LedgerCorruptError(LedgerError):
    """The ledger or a result file is damaged."""

    code = "ledger_corrupt"


class RunMismatchError(LedgerError):
    """The run on disk was started with another input, engine or setting."""

    code = "run_mismatch"


class RunLockedError(LedgerError):
    """Another process is running this run."""

    code = "run_locked"


class ReconcileError(TrtbError):
    """A line is unaccounted for: a bug of ours, never hidden."""

    code = "reconcile_failed"
    exit_code = 70


class RunInterruptedError(TrtbError):
    """The run was stopped by a signal and can be resumed."""

    code = "interrupted"
    exit_code = 130


class TooManyFailuresError(TrtbError):
    """The run was stopped because its requests fail, and can be resumed."""

    code = "too_many_failures"
    exit_code = 8


class RequestError(TrtbError):
    """One request failed. `code` is what its failure line says; `retryable` whether it can heal."""

    code = "engine_error"
    retryable: ClassVar[bool] = False
    status_code: ClassVar[int] = 500  # the HTTP status a hosted API would have answered with


class InvalidRequestError(RequestError):
    """The request cannot be rendered or is not accepted by the engine."""

    code = "invalid_request"
    status_code = 400


class ContextLengthError(RequestError):
    """Prompt and answer together are longer than the engine's limit."""

    code = "context_length_exceeded"
    status_code = 400


class EngineError(RequestError):
    """The engine answered with an error of its own."""

    code = "engine_error"


class DeadlineExceededError(RequestError):
    """The request took longer than its timeout, counted from when it was sent."""

    code = "timeout"
    status_code = 504


class ConnectionLostError(RequestError):
    """The server went away while the request was in flight."""

    code = "connection_lost"
    retryable = True
    status_code = 503


class QueueFullError(RequestError):
    """The server has no room for the request now."""

    code = "queue_full"
    retryable = True
    status_code = 429


class CancelledRequestError(RequestError):
    """The server says that the request was cancelled, and it was not we who did it."""

    code = "cancelled"
    retryable = True
    status_code = 499
