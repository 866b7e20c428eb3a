"""Whatever is added to a ledger, in any order and in several sessions, is in it once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fakes.rows import completed_row, failed_row
from hypothesis import given, settings
from hypothesis import strategies as st

from trtb.runner import ledger
from trtb.runner.ledger import LedgerWriter

records = st.binary(min_size=1, max_size=200)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.integers(1, 1 << 40), st.tuples(st.booleans(), records), max_size=40),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_rows_of_several_sessions_add_up_to_all_of_them(wanted, num_sessions, random):
    rows = [
        completed_row(line, record=record) if is_completed else failed_row(line, record=record)
        for line, (is_completed, record) in wanted.items()
    ]
    random.shuffle(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.db")
        for session in range(num_sessions):
            writer = LedgerWriter(path)
            for row in rows[session::num_sessions]:
                writer.add(row)
                if row.line % 3 == 0:
                    writer.flush()
            writer.close()
        found = list(ledger.read_rows(path))
        num_failed = ledger.reopen_failures(path)
        left = list(ledger.read_rows(path))
    assert found == sorted(rows, key=lambda row: row.line)
    assert num_failed == sum(row.status == "failed" for row in rows)
    assert left == [row for row in found if row.status == "completed"]
