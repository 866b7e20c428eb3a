"""Rows on their way into a run's ledger, its followed file and its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from trtb.runner.follow import FollowFile
from trtb.runner.ledger import LedgerWriter, ResultRow
from trtb.runner.options import Progress


@contextlib.contextmanager
def recording(
    ledger_path: Path, follow_path: Path | None, progress: Progress
) -> Iterator[Callable[[ResultRow], None]]:
    """Open the ledger and, where it is wanted, the followed file; yields what records a row.

    Raises:
        LedgerError: The ledger could not be written.
    """
    with contextlib.ExitStack() as stack:
        on_commit = None
        if follow_path is not None:
            followed = FollowFile(follow_path)
            stack.callback(followed.close)
            on_commit = followed.append
        writer = LedgerWriter(ledger_path, on_commit=on_commit)
        stack.callback(writer.close)

        def record(row: ResultRow) -> None:
            writer.add(row)
            if row.status == "completed":
                progress.num_completed += 1
                # the speed is the engine's: an answer that was there already is none of it
                progress.num_tokens += row.completion_tokens if row.attempts else 0
            else:
                progress.num_failed += 1

        yield record
