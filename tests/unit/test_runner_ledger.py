"""The ledger: what it says is on disk is on disk, and what it cannot use it refuses."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fakes.rows import completed_row, failed_row, write_ledger

from trtb.runner import ledger
from trtb.runner.errors import LedgerCorruptError, LedgerError
from trtb.runner.ledger import LedgerWriter

FAKES = Path(__file__).parents[1]
WRITE_UNTIL_KILLED = """
import sys
sys.path.append(sys.argv[2])
from pathlib import Path
from fakes.rows import completed_row
from trtb.runner.ledger import LedgerWriter
writer = LedgerWriter(Path(sys.argv[1]))
line = 0
while True:
    for _ in range(37):
        line += 1
        writer.add(completed_row(line))
    writer.flush()
    print(line, flush=True)
"""
FILL_THE_DISK = """
import resource, signal, sys
sys.path.append(sys.argv[2])
from pathlib import Path
from fakes.rows import completed_row
from trtb.runner.errors import LedgerError
from trtb.runner.ledger import LedgerWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
writer = LedgerWriter(Path(sys.argv[1]))
acknowledged = 0
try:
    for line in range(1, 10_000):
        writer.add(completed_row(line, record=b"x" * 1000))
        if line % 20 == 0:
            writer.flush()
            acknowledged = line
except LedgerError as exc:
    print(acknowledged, exc.exit_code, exc.hint)
try:
    writer.close()
except LedgerError:
    print("closed")
"""


def child(code: str, *args: object, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=sys.prefix, **options)


def lines_of(path: Path) -> list[int]:
    return [line for line, _ in ledger.done_lines(path)]


def test_rows_come_back_as_they_were_written_in_line_order(tmp_path):
    path = tmp_path / "ledger.db"
    rows = [completed_row(line) for line in (3, 1, 2500)] + [
        failed_row(2, custom_id=None, record=b"\x00\xff\r")
    ]
    write_ledger(path, rows)
    assert list(ledger.read_rows(path)) == sorted(rows, key=lambda row: row.line)
    assert list(ledger.done_lines(path)) == [
        (1, "completed"),
        (2, "failed"),
        (3, "completed"),
        (2500, "completed"),
    ]


def test_reading_in_chunks_loses_nothing(tmp_path):
    path = tmp_path / "ledger.db"
    write_ledger(path, (completed_row(line * 3) for line in range(1, 2502)))
    assert [row.line for row in ledger.read_rows(path)] == [line * 3 for line in range(1, 2502)]


def test_rows_can_be_read_by_others_while_they_are_written(tmp_path):
    path = tmp_path / "ledger.db"
    writer = LedgerWriter(path)
    writer.add(completed_row(1))
    writer.flush()
    assert lines_of(path) == [1]
    writer.add(completed_row(2))
    writer.close()
    assert lines_of(path) == [1, 2]
    assert not path.with_name("ledger.db-wal").exists()


def test_what_was_acknowledged_before_kill_9_is_there_afterwards(tmp_path):
    path = tmp_path / "ledger.db"
    process = child(WRITE_UNTIL_KILLED, path, FAKES)
    assert process.stdout
    acknowledged = 0
    while acknowledged < 37 * 8:
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    found = lines_of(path)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= acknowledged
    ledger.check_integrity(path)


def test_a_full_disk_is_told_and_what_was_acknowledged_stays(tmp_path):
    path = tmp_path / "ledger.db"
    process = child(FILL_THE_DISK, path, FAKES)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    told, closed = output.splitlines()
    acknowledged, exit_code, hint = told.split(maxsplit=2)
    assert int(acknowledged) > 0
    assert exit_code == "7"
    assert "free disk space" in hint
    assert closed == "closed"
    found = lines_of(path)
    assert found[: int(acknowledged)] == list(range(1, int(acknowledged) + 1))
    ledger.check_integrity(path)


def test_a_line_answered_twice_is_an_error_and_not_a_second_row(tmp_path):
    writer = LedgerWriter(tmp_path / "ledger.db")
    writer.add(completed_row(1))
    writer.add(completed_row(1))
    with pytest.raises(LedgerError, match="UNIQUE"):
        writer.flush()
    with pytest.raises(LedgerError):
        writer.add(completed_row(2))
    with pytest.raises(LedgerError):
        writer.close()


def test_after_an_error_nobody_waits_for_the_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MAX_WAITING_ROWS", 10)

    def full(_rows: object) -> None:
        raise OSError(28, "No space left on device")

    writer = LedgerWriter(tmp_path / "ledger.db", on_commit=full)
    with pytest.raises(LedgerError, match="No space left"):
        for line in range(1, 10_000):
            writer.add(completed_row(line))
    with pytest.raises(LedgerError, match="No space left"):
        writer.close()
    assert threading.active_count() < 20


def test_committed_rows_are_told_once_each_in_order(tmp_path):
    told: list[int] = []
    writer = LedgerWriter(
        tmp_path / "ledger.db", on_commit=lambda rows: told.extend(row.line for row in rows)
    )
    for line in range(1, 5001):
        writer.add(completed_row(line))
    writer.close()
    assert told == list(range(1, 5001))


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerCorruptError, match="expected a ledger") as caught:
        LedgerWriter(path)
    assert caught.value.exit_code == 7
    assert path.read_bytes() == content


def test_a_ledger_of_another_schema_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "ledger.db"
    write_ledger(path, [completed_row(1)])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(LedgerCorruptError, match="schema version 99; expected 2") as caught:
        LedgerWriter(path)
    assert "version of trtb that began it" in caught.value.hint


def test_a_ledger_of_the_first_schema_is_read_and_written(tmp_path):
    path = tmp_path / "ledger.db"
    rows = [completed_row(1), completed_row(2, attempts=0, reused_from="equal"), failed_row(3)]
    columns = ledger.COLUMN_NAMES[:-2]
    values = [[getattr(row, name) for name in columns] for row in rows]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"CREATE TABLE results({', '.join(columns)})")
        connection.execute("CREATE TABLE superseded AS SELECT * FROM results WHERE 0")
        connection.executemany(f"INSERT INTO results VALUES({', '.join('?' * len(columns))})", values)
        connection.execute("PRAGMA user_version=1")

    assert list(ledger.read_rows(path)) == rows
    assert ledger.reopen_failures(path) == 1
    write_ledger(path, [completed_row(3, reused_blocks=7)])
    assert list(ledger.read_rows(path))[2].reused_blocks == 7


def test_a_damaged_page_is_found_before_a_run_goes_on(tmp_path):
    path = tmp_path / "ledger.db"
    write_ledger(path, (completed_row(line, record=b"y" * 3000) for line in range(1, 200)))
    with path.open("r+b") as file:
        file.seek(5 * 16384)
        file.write(os.urandom(3 * 16384))
    with pytest.raises(LedgerCorruptError) as caught:
        ledger.check_integrity(path)
    assert "restore" in caught.value.hint


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path):
    with pytest.raises(LedgerError, match="unable to open") as caught:
        LedgerWriter(tmp_path / "nowhere" / "ledger.db")
    assert not isinstance(caught.value, LedgerCorruptError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error_of_ours(tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    with pytest.raises(LedgerError):
        LedgerWriter(folder / "ledger.db")


READ_ONLY = """
import os, sys
sys.path.append(sys.argv[2])
from pathlib import Path
from trtb.runner import ledger
from trtb.runner.errors import LedgerCorruptError, LedgerError
os.setuid(65534)
try:
    ledger.LedgerWriter(Path(sys.argv[1]))
except LedgerError as exc:
    print(type(exc).__name__, exc.exit_code)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user_is_an_error_of_ours():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        output, _ = child(READ_ONLY, Path(folder, "ledger.db"), FAKES).communicate(timeout=60)
    assert output.split() == ["LedgerError", "7"]


def test_reopened_failures_are_to_do_again_and_their_rows_are_kept_aside(tmp_path):
    path = tmp_path / "ledger.db"
    codes = {1: "timeout", 2: "engine_error", 3: "timeout"}
    write_ledger(path, [*(failed_row(line, code) for line, code in codes.items()), completed_row(4)])
    assert (ledger.count_failures(path), ledger.count_failures(path, frozenset({"timeout"}))) == (3, 2)
    assert ledger.reopen_failures(path, frozenset({"timeout"})) == 2
    assert lines_of(path) == [2, 4]
    assert ledger.reopen_failures(path, frozenset({"timeout"})) == 0
    assert ledger.reopen_failures(path, lines=[4, 7]) == 0
    assert ledger.reopen_failures(path) == 1
    assert lines_of(path) == [4]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("SELECT line, code FROM superseded ORDER BY line").fetchall()
    assert kept == sorted(codes.items())
    write_ledger(path, [completed_row(1)])
    assert lines_of(path) == [1, 4]
