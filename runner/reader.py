r"""Read a request file line by line, in bounded memory whatever the file holds.

Bytes are split on `\n` only: text-mode line ends (`\x0b`, U+2028, a lone `\r`) occur inside JSON strings.
One UTF-8 byte order mark at byte 0 and one `\r` before the line end are framing, not content. Lines of
nothing but white space are not requests: they are skipped, and line numbers stay those of the file.
"""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from trtb.runner.errors import InputFileError, InputNotFoundError

BUFFER_BYTES = 1 << 20
DEFAULT_MAX_LINE_BYTES = 16 << 20
BOM = b"\xef\xbb\xbf"
_FRAMING_BYTES = len(BOM) + len(b"\r\n")


class TooLong(NamedTuple):
    """A line over the limit: read to its end, and not kept."""

    num_bytes: int  # with its line end


class RawLine(NamedTuple):
    """One line that is not blank; the file's bytes [offset, offset + num_bytes) are the line with its end."""

    number: int  # from 1, blank lines counted
    offset: int
    num_bytes: int
    data: bytes | None  # without byte order mark and line end; None: longer than the limit
    had_bom: bool = False


def open_input(path: Path) -> io.FileIO:
    """Open a request file, unbuffered.

    Raises:
        InputNotFoundError: There is no such file.
        InputFileError: It is not a regular file, or may not be read.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputFileError(
                f"{path}: {kind}; expected a JSONL file", "write the requests to a file: it is read twice"
            )
        return path.open("rb", buffering=0)
    except FileNotFoundError as exc:
        raise InputNotFoundError(f"{path}: not found; expected a JSONL file", "check the path") from exc
    except OSError as exc:
        raise InputFileError(f"{path}: {exc.strerror}; expected a readable JSONL file") from exc


def iter_lines(file: BinaryIO, max_line_bytes: int) -> Iterator[bytes | TooLong]:
    """Yield every physical line with its line end; of a line over the limit, only its length.

    A yielded line may exceed `max_line_bytes` by the line end and the byte order mark, no more.
    """
    readline = file.readline
    limit = max_line_bytes + _FRAMING_BYTES
    while data := readline(limit):
        if len(data) <= max_line_bytes:
            yield data
        elif data.endswith(b"\n") or len(data) < limit:
            yield data if _num_content_bytes(data) <= max_line_bytes else TooLong(len(data))
        else:
            yield TooLong(len(data) + _skip_line(file))


def read_lines(file: BinaryIO, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> Iterator[RawLine]:
    """Yield the lines that are not blank, from the file's beginning."""
    offset = 0
    for number, line in enumerate(iter_lines(file, max_line_bytes), start=1):
        if isinstance(line, TooLong):
            yield RawLine(number, offset, line.num_bytes, None)
            offset += line.num_bytes
            continue
        had_bom = offset == 0 and line.startswith(BOM)
        data = content(line, had_bom=had_bom)
        if not is_blank(data):
            yield RawLine(number, offset, len(line), data, had_bom)
        offset += len(line)


def content(line: bytes, *, had_bom: bool) -> bytes:
    r"""Return a physical line without its byte order mark, its line end and one carriage return.

    >>> content(b"{}\r\n", had_bom=False)
    b'{}'
    """
    return line[len(BOM) if had_bom else 0 :].removesuffix(b"\n").removesuffix(b"\r")


def is_blank(data: bytes) -> bool:
    """Say whether a line holds nothing but white space."""
    return not data or data.isspace()


def _num_content_bytes(line: bytes) -> int:
    # a mark in the middle of the file counts as content there; the three bytes of leeway hurt nobody
    return len(content(line, had_bom=line.startswith(BOM)))


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while chunk := file.readline(BUFFER_BYTES):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
