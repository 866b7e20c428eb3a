"""Counts as people read them."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun; `many` is `one` with an s where it is not given.

    >>> counted(1, "answer"), counted(0, "answer"), counted(2, "prefix", "prefixes")
    ('1 answer', '0 answers', '2 prefixes')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"
