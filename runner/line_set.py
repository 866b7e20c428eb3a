"""A set of line numbers in a bit each."""

from __future__ import annotations

from collections.abc import Iterator


class LineSet:
    """A set of line numbers: one bit for each line up to the highest, whatever is in it."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._num_lines = 0

    def add(self, number: int) -> None:
        """Add a line number."""
        if number in self:
            return
        missing = number // 8 + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(missing + 64))
        self._bits[number // 8] |= 1 << number % 8
        self._num_lines += 1

    def discard(self, number: int) -> None:
        """Take a line number out, if it is in."""
        if number in self:
            self._bits[number // 8] &= ~(1 << number % 8)
            self._num_lines -= 1

    def __contains__(self, number: int) -> bool:
        index = number // 8
        return index < len(self._bits) and bool(self._bits[index] >> number % 8 & 1)

    def __len__(self) -> int:
        return self._num_lines

    def __iter__(self) -> Iterator[int]:
        return (
            i * 8 + bit for i, byte in enumerate(self._bits) if byte for bit in range(8) if byte >> bit & 1
        )
