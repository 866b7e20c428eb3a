"""Whatever bytes a file holds, its passages are its own lines, and the same ones are chosen each time."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st

from trtb.build.calibration import _sample
from trtb.build.calibration_source import Fault, Passage, Text, find_passages, read_passage, read_request
from trtb.build.config import CalibrationConfig

GOOD = b'{"prompt": "x"}'
framed = st.lists(
    st.sampled_from(
        [b"\n", b"\n\n", b"\r\n", b"\xef\xbb\xbf", b" ", b"{}", GOOD, b"word", b"\xe2\x80\xa8", b"\xff"]
    ),
    max_size=40,
).map(b"".join)
contents = st.binary(max_size=200) | framed


@given(contents)
def test_every_line_that_is_a_request_is_a_passage_and_every_other_is_a_fault(data: bytes) -> None:
    file = io.BytesIO(data)
    found = list(find_passages(file, "requests"))
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = {number: line for number, line in enumerate(lines, start=1) if line.strip()}
    assert [item.line for item in found] == list(expected)
    for item in found:
        content = read_request(expected[item.line])
        if isinstance(item, Fault):
            assert item.why == content
        else:
            assert read_passage(file, item, "requests") == content == Text("x")


@given(contents)
def test_paragraphs_are_what_stands_between_blank_lines(data: bytes) -> None:
    file = io.BytesIO(data)
    blocks = re.split(rb"(?:^|\n)(?:[^\S\n]*\n)+", data.removeprefix(b"\xef\xbb\xbf"))
    expected = []
    for block in blocks:
        if block.strip():
            try:
                expected.append(block.decode().replace("\r\n", "\n").strip())
            except UnicodeDecodeError:
                expected.append(None)
    found = [read_passage(file, item, "paragraphs") for item in list(find_passages(file, "paragraphs"))]
    assert [item.text if isinstance(item, Text) else None for item in found] == expected


@given(num_items=st.integers(0, 400), num_samples=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_samples_are_different_items_and_a_smaller_set_is_the_beginning_of_a_larger_one(
    num_items: int, num_samples: int, seed: int
) -> None:
    small = _sample(range(num_items), CalibrationConfig(num_samples=num_samples, seed=seed))
    large = _sample(range(num_items), CalibrationConfig(num_samples=num_samples + 7, seed=seed))
    assert len(small) == len(set(small)) == min(num_items, num_samples + num_samples // 4 + 16)
    assert large[: len(small)] == small


def test_every_item_is_as_likely_as_any_other() -> None:
    counts = [0] * 40
    for seed in range(600):
        for item in _sample(range(40), CalibrationConfig(num_samples=1, seed=seed))[:4]:
            counts[item] += 1
    assert sum(counts) == 2400
    assert 30 < min(counts) <= max(counts) < 95  # 60 each, and 7.3 the deviation


def test_passages_begin_where_their_bytes_are() -> None:
    data = b"\xef\xbb\xbfone\n\n two\nthree\r\n"
    assert list(find_passages(io.BytesIO(data), "lines")) == [
        Passage(1, 3, 4),
        Passage(3, 8, 5),
        Passage(4, 13, 7),
    ]
    assert list(find_passages(io.BytesIO(data), "paragraphs")) == [Passage(1, 3, 4), Passage(3, 8, 12)]
