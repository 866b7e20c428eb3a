"""Reading a file into lines: framing, numbers, offsets, limits."""

from __future__ import annotations

import io
import os

import pytest

from trtb.runner.errors import InputFileError, InputNotFoundError
from trtb.runner.reader import open_input, read_lines


def read(data: bytes, max_line_bytes: int = 100):
    return list(read_lines(io.BytesIO(data), max_line_bytes))


def test_lines_end_at_newline_only():
    data = '{"a":"\u2028\u0085\x0b\x0c"}'.encode() + b"\r1\n2\n"
    assert [line.data for line in read(data)] == [data.split(b"\n")[0], b"2"]


def test_one_carriage_return_before_the_newline_is_framing():
    assert [line.data for line in read(b"1\r\n2\r\r\n3\r")] == [b"1", b"2\r", b"3"]


def test_a_byte_order_mark_is_stripped_at_the_beginning_only():
    first, second = read(b"\xef\xbb\xbf1\n\xef\xbb\xbf2\n")
    assert (first.data, first.had_bom) == (b"1", True)
    assert (second.data, second.had_bom) == (b"\xef\xbb\xbf2", False)


def test_blank_lines_are_skipped_and_counted_in_line_numbers():
    assert [(line.number, line.data) for line in read(b"\n \t\r\n1\n\n2")] == [(3, b"1"), (5, b"2")]


def test_a_mark_alone_on_the_first_line_is_blank():
    assert [line.number for line in read(b"\xef\xbb\xbf\n1\n")] == [2]


def test_offsets_and_sizes_give_back_the_original_bytes():
    data = b"\xef\xbb\xbf1\r\n\n22\n333"
    assert [data[line.offset :][: line.num_bytes] for line in read(data)] == [
        b"\xef\xbb\xbf1\r\n",
        b"22\n",
        b"333",
    ]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_limit_is_on_the_content_whatever_the_line_end(end):
    lines = read(b"x" * 10 + end, max_line_bytes=10)
    assert [line.data for line in lines] == [b"x" * 10]
    lines = read(b"x" * 11 + end, max_line_bytes=10)
    assert [(line.data, line.num_bytes) for line in lines] == [(None, 11 + len(end))]


def test_a_line_far_over_the_limit_is_never_held_in_memory():
    class Reads(io.BytesIO):
        largest = 0

        def readline(self, size=-1, /):
            line = super().readline(size)
            self.largest = max(self.largest, len(line))
            return line

    file = Reads(b"1\n" + b"x" * (5 << 20) + b"\n2\n")
    lines = list(read_lines(file, 1000))
    assert [(line.number, line.num_bytes) for line in lines] == [(1, 2), (2, (5 << 20) + 1), (3, 2)]
    assert lines[1].data is None
    assert lines[2].offset == 2 + (5 << 20) + 1
    assert file.largest <= 1 << 20


def test_a_file_that_is_not_there_is_an_error_of_ours(tmp_path):
    with pytest.raises(InputNotFoundError, match="not found"):
        open_input(tmp_path / "no.jsonl")


def test_a_folder_and_a_pipe_are_refused(tmp_path):
    with pytest.raises(InputFileError, match="a folder"):
        open_input(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputFileError, match="not a regular file"):
        open_input(tmp_path / "pipe")
