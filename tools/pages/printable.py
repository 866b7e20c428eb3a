"""Texts and numbers as a page shows them: nothing in them moves, hides or fills the page."""

from __future__ import annotations

import unicodedata

MAX_ID_CHARS = 80
KEPT = frozenset("\n\t")
# control characters, marks that turn the direction of what follows, halves of pairs, and what is no character
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})


def shown_id(text: str, max_chars: int = MAX_ID_CHARS) -> str:
    r"""Return an id on one line: cut where it is long, and with what cannot be seen written out.

    >>> shown_id("a\u202eb\n"), shown_id("x" * 100, max_chars=5)
    ('a\\u202eb\\n', 'xxxxx… (100 characters)')
    """
    shown = "".join(map(_visible, text[:max_chars])).replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(text) <= max_chars else f"{shown}… ({len(text)} characters)"


def shown_text(text: str) -> str:
    r"""Return a text with its line ends, and with what else cannot be seen written out.

    >>> shown_text("two\nlines\x00")
    'two\nlines\\x00'
    """
    return "".join(map(_visible, text))


def shown_count(value: float) -> str:
    """Return a count with its thousands apart.

    >>> shown_count(1234567), shown_count(0.5), shown_count(1234.5)
    ('1,234,567', '0.5', '1,234')
    """
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def shown_seconds(seconds: float) -> str:
    """Return a duration as people read it.

    >>> shown_seconds(0.0421), shown_seconds(2.5), shown_seconds(62), shown_seconds(90061)
    ('42.1 ms', '2.5 s', '1:02', '25:01:01')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shown_share(part: float, whole: float) -> str:
    """Return a share in percent, never 100 of what is not all, and nothing of nothing.

    >>> shown_share(1, 8), shown_share(99_999, 100_000), shown_share(0, 0)
    ('12.5%', '99.9%', '')
    """
    if not whole:
        return ""
    percent = part / whole * 100
    return f"{percent if part == whole else min(percent, 99.9):.3g}%"


def _visible(char: str) -> str:
    if char in KEPT or unicodedata.category(char) not in HIDDEN:
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
