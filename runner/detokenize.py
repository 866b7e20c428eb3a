"""Turn token ids into text as they come, exactly as decoding all of them at once would.

`tokenizers.decoders.DecodeStream` does not hold that promise. It waits for text that does not end in
U+FFFD: bytes that never become UTF-8 at an answer's end are lost, and a long run of them is decoded again
at every token. Where the decoder falls back to bytes (Llama 2's kind), it gives text away that a later
byte changes, and then raises. So the library's decoders are read here as what they are, a map of each
token and one rule for what crosses tokens: UTF-8 sequences, runs of byte tokens, leading blanks.
A decoder of another shape is still exact; its text comes at the end.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tokenizers.pre_tokenizers import ByteLevel

_REPLACEMENT = "\ufffd"
_PER_TOKEN = {"Replace", "Strip", "Metaspace", "WordPiece"}
_AFTER_REPLACE = (["ByteFallback"], ["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"])
_BYTE_TOKEN = re.compile(r"<0x(\+[0-9a-fA-F]|[0-9a-fA-F]{2})>")  # the library reads a sign as a digit, too
_ANCHOR = "x"  # stands before a token whose text is asked for, so that it is not the first

V = TypeVar("V")


class Detokenizer:
    """The text of one answer, from ids in any portions.

    Args:
        backend: The tokenizer; it must not change afterwards, since what is read from it is kept.
    """

    def __init__(self, backend: Any) -> None:
        self._text = _reading(backend)()

    def push(self, ids: list[int]) -> str:
        """Take new ids; return the new text that no later id can change."""
        return self._text.push(ids)

    def finish(self) -> str:
        """Return the rest of the text; nothing may be pushed after it."""
        return self._text.finish()


class StopMatcher:
    """Finds the first stop string of an answer, wherever token borders fall.

    The stop string that is complete first wins, and of several that are complete with the same character
    the longest. So the answer depends on its text alone, not on the portions in which it came.
    """

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._num_kept = max(map(len, stop), default=1) - 1
        self._parts: list[str] = []
        self._length = 0
        self._tail = ""  # the last characters, which may begin a stop string
        self._answer: str | None = None
        self._num_tokens = 0

    @property
    def has_stopped(self) -> bool:
        """Say whether a stop string was found."""
        return self._answer is not None

    @property
    def num_tokens(self) -> int:
        """Return how many ids were taken, none after the one that completed a stop string."""
        return self._num_tokens

    def push(self, ids: list[int]) -> str | None:
        """Take new ids; return the text before the first stop string once one is there, else None."""
        for token in ids:
            if self._answer is not None:
                break
            self._num_tokens += 1
            self._search(self._detokenizer.push([token]))
        return self._answer

    def finish(self) -> str:
        """Return the answer: the text before the first stop string, or all of it."""
        if self._answer is None:
            self._search(self._detokenizer.finish())
        return "".join(self._parts) if self._answer is None else self._answer

    def _search(self, text: str) -> None:
        if not text:
            return
        self._parts.append(text)
        window = self._tail + text
        found = [(at + len(word), at) for word in self._stop if (at := window.find(word)) >= 0]
        if found:
            start = self._length - len(self._tail) + min(found)[1]
            self._answer = "".join(self._parts)[:start]
            return
        self._length += len(text)
        self._tail = window[-self._num_kept :] if self._num_kept else ""


def token_bytes(backend: Any, token_id: int) -> bytes:
    """Return what a token alone stands for; of a byte-level vocabulary that may be part of a character."""
    table = _byte_level_table(backend)
    if table is not None:
        return table[token_id]
    return str(backend.decode([token_id], skip_special_tokens=True)).encode()


class _Text(Protocol):
    """The text of one answer; `push` and `finish` as in `Detokenizer`."""

    def push(self, ids: list[int]) -> str: ...

    def finish(self) -> str: ...


class _Table(dict[int, V]):
    """What each token id stands for, worked out when it is first met and shared by all answers."""

    def __init__(self, work_out: Callable[[int], V]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, token_id: int) -> V:
        value = self[token_id] = self._work_out(token_id)
        return value


class _ByteLevelText:
    """Every token is some bytes, and all of them together are UTF-8, as far as they are."""

    def __init__(self, table: _Table[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: list[int]) -> str:
        table = self._table
        return self._decoder.decode(b"".join([table[token_id] for token_id in ids]))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class _PieceText:
    """Every token is a text of its own; the first one may have another than the rest."""

    def __init__(self, table: _Table[tuple[str, str] | None]) -> None:
        self._table = table
        self._is_first = True

    def push(self, ids: list[int]) -> str:
        pieces = [piece for token_id in ids if (piece := self._table[token_id]) is not None]
        if not pieces:
            return ""
        first = pieces[0][0] if self._is_first else pieces[0][1]
        self._is_first = False
        return first + "".join([rest for _, rest in pieces[1:]])

    def finish(self) -> str:
        return ""


class _ByteRunText:
    """Every token is a text or one byte; a run of bytes is text only if the whole run is UTF-8.

    So nothing of a run is certain before it ends, and a token that is skipped does not end it.
    """

    def __init__(self, table: _Table[str | bytes | None], strip: tuple[str, int]) -> None:
        self._table = table
        self._blank, self._num_to_strip = strip
        self._run: list[bytes] = []

    def push(self, ids: list[int]) -> str:
        out: list[str] = []
        for token_id in ids:
            piece = self._table[token_id]
            if isinstance(piece, bytes):
                self._run.append(piece)
            elif piece is not None:
                out += self._end_run(), piece
        return self._strip("".join(out))

    def finish(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        run, self._run = self._run, []
        try:
            return b"".join(run).decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text:
            if text[0] != self._blank:
                self._num_to_strip = 0
                break
            self._num_to_strip -= 1
            text = text[1:]
        return text


class _WholeText:
    """Nothing is known of the decoder, so nothing is certain before the end."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._ids: list[int] = []

    def push(self, ids: list[int]) -> str:
        self._ids += ids
        return ""

    def finish(self) -> str:
        return self._backend.decode(self._ids, skip_special_tokens=True)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4)
def _reading(backend: Any) -> Callable[[], _Text]:
    """Return what starts the text of an answer: how this tokenizer's decoder is to be read."""
    byte_table = _byte_level_table(backend)
    if byte_table is not None:
        return lambda: _ByteLevelText(byte_table)
    token_of = _shown_tokens(backend)
    stages = _stages(backend)
    kinds = [stage["type"] for stage in stages]
    after_replace = kinds[next((i for i, kind in enumerate(kinds) if kind != "Replace"), len(kinds)) :]
    if after_replace in _AFTER_REPLACE and backend.decoder.decode([_ANCHOR]) == _ANCHOR:
        last = stages[-1]
        strip = (last["content"], last["start"]) if last["type"] == "Strip" else ("", 0)
        if last.get("stop", 0) == 0:
            run_table = _byte_run_table(token_of, backend.decoder)
            return lambda: _ByteRunText(run_table, strip)
    if _PER_TOKEN.issuperset(kinds):
        piece_table = _piece_table(token_of, backend.decoder)
        return lambda: _PieceText(piece_table)
    return lambda: _WholeText(backend)


def _stages(backend: Any) -> list[dict[str, Any]]:
    return [] if backend.decoder is None else _flat(json.loads(backend.decoder.__getstate__()))


def _flat(stage: dict[str, Any]) -> list[dict[str, Any]]:
    if stage["type"] != "Sequence":
        return [stage]
    return [inner for part in stage["decoders"] for inner in _flat(part)]


def _shown_tokens(backend: Any) -> Callable[[int], str | None]:
    """Return the lookup of an id's token; None is a special or unknown one, which decoding skips."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}

    def token_of(token_id: int) -> str | None:
        token: str | None = backend.id_to_token(token_id)
        return None if token in special else token

    return token_of


@functools.lru_cache(maxsize=4)
def _byte_level_table(backend: Any) -> _Table[bytes] | None:
    """Return each token's bytes, or None where the vocabulary is not one of bytes."""
    if [stage["type"] for stage in _stages(backend)] != ["ByteLevel"]:
        return None
    token_of = _shown_tokens(backend)
    # a byte that is a printable Latin-1 character is written as it; the others take, in order, what follows
    alphabet = sorted(ByteLevel.alphabet())
    printable = {ord(char) for char in alphabet if ord(char) < 256}
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = dict(zip(alphabet, sorted(printable) + others, strict=True))

    def work_out(token_id: int) -> bytes:
        token = token_of(token_id) or ""
        try:
            return bytes([byte_of[char] for char in token])
        except KeyError:  # an added token in plain text
            return token.encode()

    return _Table(work_out)


def _byte_run_table(token_of: Callable[[int], str | None], decoder: Any) -> _Table[str | bytes | None]:
    def work_out(token_id: int) -> str | bytes | None:
        token = token_of(token_id)
        if token is None:
            return None
        text: str = decoder.decode([_ANCHOR, token]).removeprefix(_ANCHOR)
        if _BYTE_TOKEN.fullmatch(token) and text != token:
            return bytes([int(token[3:5], 16)])
        return text

    return _Table(work_out)


def _piece_table(token_of: Callable[[int], str | None], decoder: Any) -> _Table[tuple[str, str] | None]:
    def work_out(token_id: int) -> tuple[str, str] | None:
        token = token_of(token_id)
        if token is None:
            return None
        if decoder is None:  # the library joins with blanks
            return token, f" {token}"
        with_anchor: str = decoder.decode([_ANCHOR, token])
        return decoder.decode([token]), with_anchor.removeprefix(decoder.decode([_ANCHOR]))

    return _Table(work_out)
