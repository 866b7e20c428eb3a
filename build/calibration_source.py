r"""Find the passages of a file that can calibrate: requests of a JSONL file, paragraphs or lines of a text.

Memory stays flat whatever the file holds: a passage is a place in the file until it is chosen. Bytes are
split on `\n` only; one UTF-8 byte order mark at the beginning and a `\r` before a line's end are framing.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

import orjson

from trtb.build.errors import ConfigError

Kind = Literal["requests", "paragraphs", "lines"]

MAX_LINE_BYTES: Final = 16 << 20  # of a request; longer ones are no use to calibrate with
MAX_PASSAGE_BYTES: Final = 64 << 10  # of a text; more than the longest sample has tokens
_SNIFF_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_UNDECODABLE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip", b"(\xb5": "zstd"}
_REQUEST_SUFFIXES = frozenset({".jsonl", ".ndjson"})
_TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst"})


@dataclass(frozen=True, slots=True)
class Passage:
    """A place in the file: its bytes [offset, offset + num_bytes) begin on a line."""

    line: int  # from 1
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a line is of no use; never fatal by itself."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages of a chat request, contents as texts."""

    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Text:
    """A text as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Ids:
    """A prompt that was tokenised already."""

    token_ids: list[int]


Content: TypeAlias = Chat | Text | Ids


def open_source(path: Path) -> tuple[IO[bytes], Kind]:
    """Open a file and say what its passages are, by its suffix or else by its beginning.

    Raises:
        ConfigError: There is no such file, or it holds no text.
    """
    place = f"calibration source: {path}"
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise ConfigError(f"{place}: {kind}; expected a JSONL file of requests or a text file")
        file = path.open("rb")
    except FileNotFoundError as exc:
        raise ConfigError(f"{place}: not found", "give a JSONL file of requests or a text file") from exc
    except OSError as exc:
        raise ConfigError(f"{place}: {exc.strerror}; expected a readable file") from exc
    head = file.read(_SNIFF_BYTES)
    file.seek(0)
    if head[:2] in _UNDECODABLE or b"\0" in head:
        file.close()
        found = _UNDECODABLE.get(head[:2], "binary data")
        raise ConfigError(f"{place}: {found}; expected UTF-8 text", "give a JSONL file of requests or a text")
    return file, _kind_of(path.suffix.lower(), head.removeprefix(_BOM))


def _kind_of(suffix: str, head: bytes) -> Kind:
    looks_like_json = head.lstrip()[:1] == b"{" and suffix not in _TEXT_SUFFIXES
    if suffix in _REQUEST_SUFFIXES or looks_like_json:
        return "requests"
    lines = head.strip().split(b"\n")
    return "paragraphs" if any(not line.strip() for line in lines) else "lines"


def find_passages(file: IO[bytes], kind: Kind) -> Iterator[Passage | Fault]:
    """Yield what a file holds, in its order; of a JSONL file, only lines that are requests are passages.

    The file's position is this iterator's until it ends: read no passage before.
    """
    lines = _read_lines(file, MAX_LINE_BYTES if kind == "requests" else MAX_PASSAGE_BYTES)
    if kind == "paragraphs":
        yield from _paragraphs(lines)
        return
    for number, offset, line, is_whole in lines:
        if not line.strip():
            continue
        if kind == "requests":
            content = read_request(line) if is_whole else f"more than {MAX_LINE_BYTES} bytes"
            if isinstance(content, str):
                yield Fault(number, content)
                continue
        yield Passage(number, offset, len(line))


def read_passage(file: IO[bytes], passage: Passage, kind: Kind) -> Content | str:
    """Return what a passage holds, or why it is of no use."""
    file.seek(passage.offset)
    data = file.read(passage.num_bytes)
    if kind == "requests":
        return read_request(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        # only the cut of a long passage may fall inside a character
        if passage.num_bytes < MAX_PASSAGE_BYTES or exc.start < len(data) - 3:
            return f"not UTF-8 at byte {exc.start + 1}"
        text = data[: exc.start].decode()
    return Text(text.replace("\r\n", "\n").strip())


def read_request(line: bytes) -> Content | str:
    """Return the prompt of a request in the hosted APIs' batch form, or why there is none."""
    try:
        request = orjson.loads(line)
    except (orjson.JSONDecodeError, RecursionError) as exc:
        return f"not JSON: {exc}"
    body = request.get("body", request) if isinstance(request, dict) else None
    if not isinstance(body, dict):
        return "not a request: no body"
    if "messages" in body:
        return _read_messages(body["messages"])
    if "prompt" in body:
        return _read_prompt(body["prompt"])
    return "neither body.messages nor body.prompt"


def _read_messages(messages: Any) -> Content | str:
    if not isinstance(messages, list) or not messages:
        return "body.messages: expected a list that is not empty"
    read = []
    for index, message in enumerate(messages):
        place = f"body.messages[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"{place}: expected an object with a role"
        content = message.get("content")
        if isinstance(content, list):
            parts = [part.get("text") if isinstance(part, dict) else None for part in content]
            texts = [part for part in parts if isinstance(part, str)]
            if len(texts) < len(parts):
                return f"{place}.content: expected texts alone"
            content = "".join(texts)
        if content is not None and not isinstance(content, str):
            return f"{place}.content: expected a text"
        read.append({"role": message["role"], "content": content or ""})
    return Chat(read)


def _read_prompt(prompt: Any) -> Content | str:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]  # of several prompts in one request, the first
    if isinstance(prompt, str):
        return Text(prompt)
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return Ids(prompt)
    return "body.prompt: expected a text or token ids"


def _paragraphs(lines: Iterator[tuple[int, int, bytes, bool]]) -> Iterator[Passage]:
    """Join lines up to the next blank one, or to where a passage is long enough."""
    begin: tuple[int, int] | None = None
    num_bytes = 0
    for number, offset, line, _ in lines:
        is_blank = not line.strip()
        if begin is not None and (is_blank or num_bytes + len(line) > MAX_PASSAGE_BYTES):
            yield Passage(*begin, num_bytes)
            begin = None
        if is_blank:
            continue
        if begin is None:
            begin, num_bytes = (number, offset), 0
        num_bytes = offset + len(line) - begin[1]
    if begin is not None:
        yield Passage(*begin, num_bytes)


def _read_lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[int, int, bytes, bool]]:
    """Yield number, offset, bytes and whether they are the whole line; a long line's rest is skipped."""
    offset = 0
    number = 0
    file.seek(0)
    while line := file.readline(max_bytes + 1):
        number += 1
        begin, num_bytes = offset, len(line)
        is_whole = line.endswith(b"\n") or num_bytes <= max_bytes
        while not line.endswith(b"\n") and (more := file.readline(max_bytes + 1)):
            num_bytes += len(more)
            if more.endswith(b"\n"):
                break
        offset = begin + num_bytes
        if begin == 0 and line.startswith(_BOM):
            line, begin = line.removeprefix(_BOM), len(_BOM)
        yield number, begin, line[:max_bytes], is_whole
