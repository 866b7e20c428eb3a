"""Whether answers depend on company: true, false, or null where a server does not tell. No I/O."""

from __future__ import annotations

from collections.abc import Collection


def weakest(exactness: Collection[bool | None]) -> bool | None:
    """Return what holds of all: one inexact answer is enough for false, and one unknown else for null.

    >>> weakest([True, None]), weakest([None, False]), weakest([True])
    (None, False, True)
    """
    if False in exactness:
        return False
    return None if None in exactness or not exactness else True
