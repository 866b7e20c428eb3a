"""A cached result in bytes: what makes an answer's output line again, for any line that asks for it.

The value is MessagePack, compressed where that pays, and it never leaves the database without its checksum:
a hash of the key that was asked for, of the value and of its age. What is damaged, or stands in another one's
place, is not an answer.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import xxhash

from trtb.runner.answer import Choice

MIN_COMPRESSED_BYTES: Final = 256
MAX_INFLATED_BYTES: Final = 64 << 20  # a few bytes of a forged copy may stand for gigabytes
_PLAIN, _DEFLATED = b"\x00", b"\x01"


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """All answers of a line, and when they were given."""

    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    created_s: int  # the "created" of the answers, since the epoch
    cached_tokens: int | None = None  # of the prompts, when they were computed; None where not told
    is_exact: bool | None = None  # whatever else was in flight, it is this one; None: the server did not tell


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the cache."""

    key: bytes
    engine_id: str
    value: bytes
    checksum: bytes
    stored_s: int  # since the epoch
    used_s: int

    @property
    def is_sound(self) -> bool:
        """Say whether the value is the one that was stored under this key at that time."""
        return checksum_of(self.key, self.stored_s, self.value) == self.checksum


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CachedAnswer).decode


def checksum_of(key: bytes, stored_s: int, value: bytes) -> bytes:
    """Return the 16 bytes that tie a value to its key and age."""
    return xxhash.xxh3_128_digest(b"%b%d\n%b" % (key, stored_s, value))


def encode(answer: CachedAnswer) -> bytes:
    """Return an answer as a value."""
    data = _encode(answer)
    if MIN_COMPRESSED_BYTES <= len(data) <= MAX_INFLATED_BYTES:  # what is larger has no room as it stands
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return _DEFLATED + packed
    return _PLAIN + data


def decode(value: bytes) -> CachedAnswer | None:
    """Return the answer in a value; None where it is none of this version's."""
    try:
        return _decode(_inflate(value[1:]) if value[:1] == _DEFLATED else value[1:])
    except (zlib.error, msgspec.DecodeError, RecursionError):
        return None


def _inflate(packed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    data = inflater.decompress(packed, MAX_INFLATED_BYTES)
    return data if inflater.eof else b""  # cut, or too large
