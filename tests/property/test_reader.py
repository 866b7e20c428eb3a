"""Whatever bytes a file holds, its lines are all there, in place."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.reader import read_lines

framed = st.lists(
    st.sampled_from([b"\n", b"\r", b"\xef\xbb\xbf", b" ", b"{}", b"x", b"\xe2\x80\xa8", b"abcdefgh"]),
    max_size=40,
).map(b"".join)


@given(data=st.binary(max_size=200) | framed, limit=st.integers(1, 20))
def test_every_line_that_is_not_blank_is_read_once_with_its_own_bytes(data, limit):
    expected = {}
    offset = 0
    for number, raw in enumerate(data.split(b"\n"), start=1):
        line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        line = line.removesuffix(b"\r")
        end = min(offset + len(raw) + 1, len(data))
        if line.strip() or len(line) > limit:
            expected[number] = (line, data[offset:end])
        offset = end
    lines = {line.number: line for line in read_lines(io.BytesIO(data), limit)}
    assert lines.keys() == expected.keys()
    for number, (line, original) in expected.items():
        read = lines[number]
        assert data[read.offset : read.offset + read.num_bytes] == original
        # outside the file's beginning a mark is content; the limit forgives its three bytes
        if len(line) <= limit:
            assert read.data == line
        elif not line.startswith(b"\xef\xbb\xbf"):
            assert read.data is None
