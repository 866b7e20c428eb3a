"""The ledger becomes files: aligned with the input, whole or not at all."""

from __future__ import annotations

import pytest
from fakes.rows import completed_row, failed_row
from fakes.runs import plan_of, request_line

from trtb.runner import publish
from trtb.runner.errors import InputFileError, ReconcileError


def nothing_is_published(folder) -> bool:
    return sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "out.jsonl.run"]


def test_the_output_has_one_line_for_each_input_line_in_input_order(tmp_path):
    data = b"".join(request_line(line) + b"\n" for line in range(1, 6))
    rows = [failed_row(4), completed_row(5), completed_row(1), failed_row(2, "timeout"), completed_row(3)]
    plan = plan_of(tmp_path, data, rows, total=5)
    totals = publish.publish(plan)
    by_line = {row.line: row.record for row in rows}
    assert plan.paths.output.read_bytes() == b"".join(by_line[line] + b"\n" for line in range(1, 6))
    assert plan.paths.failed.read_bytes() == by_line[2] + b"\n" + by_line[4] + b"\n"
    assert plan.paths.retry.read_bytes() == request_line(2) + b"\n" + request_line(4) + b"\n"
    assert (totals.completed, totals.failed) == (3, 2)
    assert not list(tmp_path.glob(".*.part"))


def test_blank_lines_have_no_output_and_do_not_shift_the_others(tmp_path):
    data = b"\n" + request_line(2) + b"\n \n\n" + request_line(5) + b"\n\n"
    plan = plan_of(tmp_path, data, [completed_row(2), failed_row(5)], total=2)
    publish.publish(plan)
    assert len(plan.paths.output.read_bytes().splitlines()) == 2
    assert plan.paths.retry.read_bytes() == request_line(5) + b"\n"


def test_the_retry_file_has_the_failed_lines_byte_for_byte(tmp_path):
    spaced = request_line(1).replace(b": ", b" :\t")
    very_long = request_line(2, padding="x" * (3 << 20))
    broken = b'{"custom_id": "c-3", \xff\xfe not json}'
    crlf = request_line(4) + b"\r"
    last = request_line(5)
    data = b"\n".join([b"\xef\xbb\xbf" + spaced, very_long, broken, crlf, last])
    rows = [
        failed_row(1),
        failed_row(2, custom_id=None),
        failed_row(3, custom_id=None),
        failed_row(4),
        failed_row(5),
    ]
    plan = plan_of(tmp_path, data, rows, total=5)
    publish.publish(plan)
    # the mark belongs to the file and a line end to the line; the last line gets the one it lacks
    assert plan.paths.retry.read_bytes() == b"\n".join([spaced, very_long, broken, crlf, last]) + b"\n"


def test_without_failures_there_is_no_failed_and_no_retry_file(tmp_path):
    plan = plan_of(tmp_path, request_line(1), [completed_row(1)], total=1)
    plan.paths.failed.write_bytes(b"from before")
    plan.paths.retry.write_bytes(b"from before")
    publish.publish(plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "out.jsonl.run"]


def test_with_a_limit_only_the_first_lines_are_published(tmp_path):
    data = b"".join(request_line(line) + b"\n" for line in range(1, 9))
    plan = plan_of(tmp_path, data, [completed_row(1), completed_row(2)], total=2, limit=2)
    assert publish.publish(plan).total == 2


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_a_line_without_a_row_is_a_bug_and_nothing_is_published(tmp_path, missing):
    data = b"".join(request_line(line) + b"\n" for line in range(1, 6))
    rows = [completed_row(line) for line in range(1, 6) if line != missing]
    plan = plan_of(tmp_path, data, rows, total=5)
    with pytest.raises(ReconcileError, match=f"line {missing} .* has no result") as caught:
        publish.publish(plan)
    assert caught.value.exit_code == 70
    assert nothing_is_published(tmp_path)


def test_a_row_without_a_line_is_a_bug_and_nothing_is_published(tmp_path):
    data = b"".join(request_line(line) + b"\n" for line in range(1, 4))
    plan = plan_of(tmp_path, data, [completed_row(line) for line in range(1, 5)], total=3)
    with pytest.raises(ReconcileError, match="line 4, past the end"):
        publish.publish(plan)
    assert nothing_is_published(tmp_path)


def test_a_row_of_a_blank_line_is_a_bug(tmp_path):
    data = request_line(1) + b"\n\n" + request_line(3) + b"\n"
    plan = plan_of(tmp_path, data, [completed_row(line) for line in (1, 2, 3)], total=2)
    with pytest.raises(ReconcileError, match=r"line 3 .* has no result.* of line 2"):
        publish.publish(plan)
    assert nothing_is_published(tmp_path)


def test_another_number_of_requests_than_was_counted_is_a_bug(tmp_path):
    plan = plan_of(tmp_path, request_line(1), [completed_row(1)], total=2)
    with pytest.raises(ReconcileError, match="1 requests published; expected 2"):
        publish.publish(plan)
    assert nothing_is_published(tmp_path)


@pytest.mark.parametrize("now", [b'{"custom_id": "other"}', b"no json", b"[1]", b"{}", b'"c-2"'])
def test_an_input_that_changed_meanwhile_is_refused_and_nothing_is_published(tmp_path, now):
    data = request_line(1) + b"\n" + now + b"\n"
    plan = plan_of(tmp_path, data, [completed_row(1), completed_row(2)], total=2)
    with pytest.raises(InputFileError, match=r"line 2 has the custom_id .* now; it was 'c-2'") as caught:
        publish.publish(plan)
    assert caught.value.exit_code == 3
    assert nothing_is_published(tmp_path)


def test_an_output_from_before_stays_when_publishing_fails(tmp_path):
    plan = plan_of(tmp_path, request_line(1) + b"\n" + request_line(2), [completed_row(1)], total=2)
    plan.paths.output.write_bytes(b"precious\n")
    with pytest.raises(ReconcileError):
        publish.publish(plan)
    assert plan.paths.output.read_bytes() == b"precious\n"
    assert not list(tmp_path.glob(".*.part"))
