"""The followed file: every result of the ledger once, also after kills."""

from __future__ import annotations

import pytest
from fakes.rows import completed_row, failed_row, write_ledger

from trtb.runner import follow
from trtb.runner.errors import LedgerCorruptError
from trtb.runner.follow import FollowFile
from trtb.runner.ledger import LedgerWriter

ROWS = [completed_row(1), failed_row(2), completed_row(3), completed_row(4)]


def content(rows) -> bytes:
    return b"".join(row.record + b"\n" for row in rows)


@pytest.fixture
def paths(tmp_path):
    write_ledger(tmp_path / "ledger.db", ROWS)
    return tmp_path / "followed.jsonl", tmp_path / "ledger.db"


def test_results_are_appended_when_they_are_durable_in_the_order_they_end(tmp_path):
    path = tmp_path / "deep" / "followed.jsonl"
    followed = FollowFile(path)
    writer = LedgerWriter(tmp_path / "ledger.db", on_commit=followed.append)
    for row in reversed(ROWS):
        writer.add(row)
    writer.flush()
    assert path.read_bytes() == content(reversed(ROWS))
    writer.close()
    followed.close()
    followed = FollowFile(path)
    followed.append([completed_row(5)])
    followed.close()
    assert path.read_bytes() == content(reversed(ROWS)) + content([completed_row(5)])


@pytest.mark.parametrize("num_present", range(5))
def test_what_the_ledger_has_and_the_file_lacks_is_appended(paths, num_present):
    path, ledger_path = paths
    path.write_bytes(content(ROWS[:num_present]))
    follow.repair(path, ledger_path, "run")
    assert path.read_bytes() == content(ROWS)
    follow.repair(path, ledger_path, "run")
    assert path.read_bytes() == content(ROWS)


def test_a_file_that_is_not_there_is_made(tmp_path, paths):
    path = tmp_path / "deep" / "followed.jsonl"
    follow.repair(path, paths[1], "run")
    assert path.read_bytes() == content(ROWS)


FAILURE, OTHER_FAILURE = (
    failed_row(2, record=ROWS[1].record.replace(b'"c-2"', word)) for word in (b'"late"', b'"sick"')
)


@pytest.mark.parametrize(
    "before",
    [
        [FAILURE],  # set aside, answered since, and ended before the answer was appended
        [FAILURE, OTHER_FAILURE],
        [ROWS[1], FAILURE],  # failed once more, and as it did the first time: the last one counts
    ],
)
def test_a_record_that_the_ledger_has_replaced_is_followed_by_the_one_that_counts(paths, before):
    path, ledger_path = paths
    path.write_bytes(content([ROWS[0], *before]))
    follow.repair(path, ledger_path, "run")
    expected = content([ROWS[0], *before, *ROWS[1:]])
    assert path.read_bytes() == expected
    follow.repair(path, ledger_path, "run")
    assert path.read_bytes() == expected


@pytest.mark.parametrize("torn", [ROWS[1].record[:5], ROWS[1].record[:-1], ROWS[1].record, b"\x00"])
def test_a_torn_last_line_is_moved_aside_and_its_result_written_whole(paths, torn):
    path, ledger_path = paths
    path.write_bytes(content(ROWS[:1]) + torn)
    follow.repair(path, ledger_path, "run")
    assert path.read_bytes() == content(ROWS)
    assert path.with_name("followed.jsonl.torn").read_bytes() == torn


def test_a_result_that_the_ledger_lacks_stays(paths):
    path, ledger_path = paths
    path.write_bytes(content([completed_row(9)]))
    follow.repair(path, ledger_path, "run")
    assert path.read_bytes() == content([completed_row(9), *ROWS])


@pytest.mark.parametrize(
    "line",
    [
        ROWS[0].record[:10],
        b"",
        b"[]",
        b"null",
        b'{"id": 5}',
        b'{"custom_id": "c-1"}',
        b'{"id": "batch_req_run-x"}',
        b'{"id": "batch_req_run-99999999999999999999"}',
        completed_row(2).record.replace(b"_run-", b"_other-"),
    ],
)
def test_a_line_in_the_middle_that_is_no_result_of_this_run_is_refused_and_nothing_changes(paths, line):
    path, ledger_path = paths
    before = content(ROWS[:1]) + line + b"\n" + content(ROWS[2:]) + b"torn"
    path.write_bytes(before)
    with pytest.raises(LedgerCorruptError, match="line 2 is not a result of this run") as caught:
        follow.repair(path, ledger_path, "run")
    assert caught.value.exit_code == 7
    assert path.read_bytes() == before
    assert not path.with_name("followed.jsonl.torn").exists()


@pytest.mark.parametrize(("content_", "is_free"), [(b"", True), (b'{"torn', True), (b'{"id": "x"}\n', False)])
def test_a_new_run_follows_into_a_file_without_results(tmp_path, content_, is_free):
    path = tmp_path / "followed.jsonl"
    follow.check_free(path)
    path.write_bytes(content_)
    if is_free:
        follow.check_free(path)
        return
    with pytest.raises(LedgerCorruptError, match="has lines that this run did not write"):
        follow.check_free(path)
