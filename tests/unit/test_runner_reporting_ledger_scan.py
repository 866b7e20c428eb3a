"""A ledger as it was at one moment, read without a trace."""

from __future__ import annotations

import sqlite3

import pytest
from fakes.rows import completed_row, failed_row, write_ledger

from trtb.build.errors import ConfigError
from trtb.runner.errors import LedgerCorruptError
from trtb.runner.ledger import LedgerWriter
from trtb.runner.reporting import ledger_scan
from trtb.runner.reporting.ledger_scan import view_ledger


def lines_of(view):
    return [line for chunk in view.chunks() for line in chunk.lines.tolist()]


def test_what_is_written_meanwhile_is_not_seen(tmp_path):
    path = tmp_path / "ledger.db"
    writer = LedgerWriter(path)
    writer.add(completed_row(2))
    writer.flush()
    with view_ledger(path) as view:
        assert lines_of(view) == [2]
        writer.add(completed_row(1))
        writer.flush()
        assert lines_of(view) == [2]
        assert view.num_rows() == 1
    with view_ledger(path) as view:
        assert lines_of(view) == [1, 2]
    writer.close()


def test_a_view_writes_nothing_and_leaves_no_file_behind(tmp_path):
    path = tmp_path / "ledger.db"
    write_ledger(path, [completed_row(1)])
    before = path.read_bytes()
    with view_ledger(path) as view, pytest.raises(sqlite3.OperationalError, match="readonly"):
        view._connection.execute("DELETE FROM results")
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.db"]
    assert path.read_bytes() == before


def test_in_a_folder_that_cannot_be_written_one_at_rest_needs_no_lock_file(tmp_path, monkeypatch):
    path = tmp_path / "odd name?#.db"
    write_ledger(path, [completed_row(1)])
    monkeypatch.setattr(ledger_scan.os, "access", lambda *_: False)
    with view_ledger(path) as view:
        assert lines_of(view) == [1]
        assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_the_kinds_of_rows_are_told_apart(tmp_path):
    path = tmp_path / "ledger.db"
    rows = [
        completed_row(1, reused_blocks=3),
        completed_row(2, attempts=0, reused_from="cache"),
        failed_row(3, "timeout"),
    ]
    write_ledger(path, rows)
    with view_ledger(path) as view:
        (chunk,) = view.chunks()
        assert view.custom_ids([3, 1]) == {1: "c-1", 3: "c-3"}
        assert view.rows([3, 2]) == rows[1:]
    assert chunk.is_completed.tolist() == [True, True, False]
    assert chunk.is_own.tolist() == [True, False, False]
    assert chunk.reused_blocks.tolist() == [3, -1, -1]
    assert list(chunk.codes) == [None, None, "timeout"]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [(None, ConfigError, "not found"), (b"no database at all" * 99, LedgerCorruptError, "expected a ledger")],
)
def test_what_is_no_ledger_is_refused(tmp_path, data, error, words):
    path = tmp_path / "ledger.db"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(error, match=words), view_ledger(path):
        pass


def test_a_ledger_of_a_later_schema_is_refused_and_kept(tmp_path):
    path = tmp_path / "ledger.db"
    write_ledger(path, [completed_row(1)])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(LedgerCorruptError, match="schema version 99"), view_ledger(path):
        pass
