"""Whatever a file looks like and whichever of its lines fail, output and input are aligned."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fakes.rows import completed_row, failed_row
from fakes.runs import plan_of, request_line
from hypothesis import given, settings
from hypothesis import strategies as st

from trtb.runner import publish

# None: a blank line; else whether the request fails
shapes = st.lists(st.none() | st.booleans(), max_size=25)


@settings(max_examples=40, deadline=None)
@given(shapes, st.booleans(), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_output_failures_and_retry_are_those_of_the_input_in_order(
    shape, has_bom, has_crlf, ends_whole, random
):
    end = b"\r\n" if has_crlf else b"\n"
    lines = [b" " if fails is None else request_line(number) for number, fails in enumerate(shape, start=1)]
    data = (b"\xef\xbb\xbf" if has_bom else b"") + end.join(lines) + (end if ends_whole and lines else b"")
    numbered = [(number, fails) for number, fails in enumerate(shape, start=1) if fails is not None]
    rows = [failed_row(number) if fails else completed_row(number) for number, fails in numbered]
    shuffled = random.sample(rows, len(rows))
    with tempfile.TemporaryDirectory() as name:
        plan = plan_of(Path(name), data, shuffled, total=len(rows))
        totals = publish.publish(plan)
        output = plan.paths.output.read_bytes()
        failed = plan.paths.failed.read_bytes() if plan.paths.failed.exists() else b""
        retry = plan.paths.retry.read_bytes() if plan.paths.retry.exists() else b""
    assert output == b"".join(row.record + b"\n" for row in rows)
    assert failed == b"".join(row.record + b"\n" for row in rows if row.status == "failed")
    assert [line.rstrip(b"\r") for line in retry.splitlines()] == [
        request_line(number) for number, fails in numbered if fails
    ]
    assert (totals.completed, totals.failed) == (
        len(rows) - sum(f for _, f in numbered),
        sum(f for _, f in numbered),
    )
