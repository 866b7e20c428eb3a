r"""Read the regular expressions that the engine compiles and takes at their ECMAScript word; refuse the rest.

The engine's reader is lenient where it should not be: it drops anchors inside an expression, takes unknown
escapes for letters, reads `[\^a]` as a negation and the digits after `\x5e` as part of it, and lets `.` match
a line break. So nothing is passed on that this reader does not know to the last character. The whole
answer matches, from its first character to its last.
"""

from __future__ import annotations

import string
from typing import Final

from trtb.runner.guiding.guide_faults import BROAD, MAX_DEPTH, Cost, GuideError

MAX_CHAR: Final = 0x10FFFF

_MANY: Final = 128  # characters of a broad class
_META: Final = frozenset("\\^$.*+?()[]{}|")
_CONTROLS: Final = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
_HEX_DIGITS: Final = {"x": 2, "u": 4}
_SPACES: Final = ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0))
_CLASSES: Final = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": _SPACES,
}
# what a JSON string holds only behind a backslash: the engine writes a pattern's characters as they are
_UNQUOTABLE: Final = frozenset({*range(0x20), 0x22, 0x5C})

_Ranges = tuple[tuple[int, int], ...]


def check_regex(text: str) -> None:
    """Raise GuideError where the engine would not compile the expression, or would read it differently."""
    _Reader(text, in_json=False).read()


def check_pattern(text: str) -> int:
    """Return how many characters its counts repeat; raise GuideError where it cannot shape a JSON string.

    It must not match a character that JSON writes as an escape, nor be an alternation at its top: the
    engine puts the quotes around its first and its last alternative only.
    """
    return _Reader(text, in_json=True).read()


class _Reader:
    """One pass over one expression."""

    def __init__(self, text: str, *, in_json: bool) -> None:
        self.text = text
        self.in_json = in_json
        self.at = 0
        self.cost = Cost()

    def read(self) -> int:
        if not self.text:
            raise GuideError("an empty expression; expected one that matches something")
        self._alternation(depth=0)
        if self.at < len(self.text):
            raise self._fault("a ) that nothing opened", "\\)")
        return self.cost.num_repeats

    def _fault(self, found: str, expected: str, at: int | None = None) -> GuideError:
        return GuideError(f"column {(self.at if at is None else at) + 1}: {found}; expected {expected}")

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _alternation(self, depth: int) -> tuple[int, bool]:
        """Read up to the end or the closing parenthesis; return the expanded size and whether "" matches."""
        if depth > MAX_DEPTH:
            raise self._fault("groups too deep", f"at most {MAX_DEPTH} inside each other")
        size, can_be_empty = self._sequence(depth)
        while self._peek() == "|":
            if depth == 0 and self.in_json:
                raise self._fault("an alternation outside a group", "(?:…) around the alternatives")
            self.at += 1
            more, is_empty = self._sequence(depth)
            size += more
            can_be_empty |= is_empty
        return size, can_be_empty

    def _sequence(self, depth: int) -> tuple[int, bool]:
        size = num_atoms = 0
        can_be_empty = True
        if depth == 0 and self._peek() == "^":
            self.at += 1
        while (char := self._peek()) not in ("", "|", ")"):
            if char == "$" and depth == 0 and self.text[self.at + 1 : self.at + 2] in ("", "|"):
                self.at += 1
                break
            start = self.at
            atom_size, is_empty = self._group(depth) if char == "(" else (self._atom(), False)
            low, copies, is_repeated = self._quantifier()
            if is_empty and is_repeated:
                raise self._fault("a repetition of what may be empty", "+ or no quantifier within it", start)
            self.cost.add(atom_size, low, copies)
            size += atom_size * copies
            can_be_empty &= is_empty or low == 0
            num_atoms += 1
        if not num_atoms:
            raise self._fault("nothing to match", "at least one character; (?:…)? makes it optional")
        return size, can_be_empty

    def _atom(self) -> int:
        """Read one character or class and return what it counts for."""
        char = self._peek()
        if char == "[":
            return BROAD if self._class() else 1
        if char == "\\":
            return BROAD if self._escape() else 1
        if char == ".":
            raise self._fault(". (it matches a line break here)", "[^\\n], or the characters that you mean")
        if char in "^$":
            raise self._fault(f"{char} inside the expression", "^ at its start or $ at its end only")
        if char in "*+?{":
            raise self._fault(f"{char} with nothing to repeat", f"\\{char} for the character itself")
        if char in _META:
            raise self._fault(f"a bare {char}", f"\\{char} for the character itself")
        self._literal(ord(char), self.at)
        self.at += 1
        return 1

    def _group(self, depth: int) -> tuple[int, bool]:
        opened = self.at
        self.at += 1
        if self._peek() == "?":
            if self.text[self.at : self.at + 2] != "?:":
                raise self._fault("a lookaround, flag or named group", "( or (?:", opened)
            self.at += 2
        found = self._alternation(depth + 1)
        if self._peek() != ")":
            raise self._fault("a ( that nothing closes", ")", opened)
        self.at += 1
        return found

    def _quantifier(self) -> tuple[int, int, bool]:
        """Read what follows an atom.

        Returns:
            The fewest times that it stands, the copies that the engine makes, and whether it may stand twice.
        """
        char = self._peek()
        if char == "{":
            found = self._count()
        elif char and char in "*+?":
            self.at += 1
            found = (int(char == "+"), 1, char != "?")
        else:
            return 1, 1, False
        if self._peek() == "?":
            self.at += 1  # lazy: the same answers are allowed
        if self._peek() and self._peek() in "*+?{":
            raise self._fault("two quantifiers in a row", "a group between them")
        return found

    def _count(self) -> tuple[int, int, bool]:
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, self.at)].partition(",")
        if end < 0 or not _is_count(low) or not (high == "" or _is_count(high)):
            raise self._fault("a malformed count", "{n}, {n,} or {n,m}")
        if high and int(high) < int(low):
            raise self._fault(f"a count from {low} to {high}", "the lower number first")
        if (high or (not comma and low)) and int(high or low) == 0:
            raise self._fault("a count of 0", "a count of at least 1")
        self.at = end + 1
        most = int(high or low)
        return int(low), max(most, 1), most > 1 or (bool(comma) and not high)

    def _escape(self) -> bool:
        """Read an escape and say whether it stands for most characters."""
        start = self.at
        name = self.text[self.at + 1 : self.at + 2]
        if name and name in "dwsDWS":
            self.at += 2
            if self.in_json and name not in "dw":
                raise self._fault(f"\\{name} (it matches what JSON must escape)", "the characters", start)
            return name.isupper()
        self._literal(self._escaped_char(), start)
        return False

    def _escaped_char(self) -> int:
        """Read an escape that stands for one character."""
        name = self.text[self.at + 1 : self.at + 2]
        if name in _HEX_DIGITS:
            return self._hex(name, _HEX_DIGITS[name])
        if name and (name in _CONTROLS or name in string.punctuation):
            self.at += 2
            return _CONTROLS.get(name, ord(name))
        raise self._fault(f"the escape \\{name}", "\\d \\w \\s \\D \\W \\S \\n \\r \\t \\f \\v \\xHH \\uHHHH")

    def _hex(self, name: str, num_digits: int) -> int:
        digits = self.text[self.at + 2 : self.at + 2 + num_digits]
        if len(digits) < num_digits or not set(digits) <= set(string.hexdigits):
            raise self._fault(f"\\{name}{digits}", f"{num_digits} hexadecimal digits after \\{name}")
        after = self.text[self.at + 2 + num_digits : self.at + 3 + num_digits]
        if after and after in string.hexdigits:
            # the engine reads as many digits as there are
            raise self._fault(f"the digit {after} after \\{name}{digits}", "the character itself")
        self.at += 2 + num_digits
        return int(digits, 16)

    def _literal(self, char: int, at: int) -> None:
        if char == 0 or 0xD800 <= char <= 0xDFFF:
            raise self._fault("a NUL or half a surrogate pair", "a whole character", at)
        if self.in_json and char in _UNQUOTABLE:
            raise self._fault("a character that JSON must escape", "other characters", at)

    def _class(self) -> bool:
        """Read a class and say whether it holds most characters."""
        opened = self.at
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            ranges.extend(self._class_item(opened, is_first=not ranges))
        if not ranges:
            raise self._fault("an empty class", "characters between [ and ]", opened)
        self.at += 1
        if self.in_json:
            self._check_quotable(tuple(ranges), negated, opened)
        return negated or sum(high - low for low, high in ranges) > _MANY

    def _class_item(self, opened: int, *, is_first: bool) -> _Ranges:
        start = self.at
        name = self.text[self.at + 1 : self.at + 2] if self._peek() == "\\" else ""
        if name and name in _CLASSES:
            self.at += 2
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                raise self._fault(f"a range from \\{name}", "\\- for the character itself")
            return _CLASSES[name]
        low = self._class_char(opened)
        if low == ord("^") and is_first:
            raise self._fault("^ as the first character of the class", "it after another", start)
        if self._peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return ((low, low),)
        if low == ord("-") and name == "":
            raise self._fault("a range from -", "\\- for the character itself", start)
        self.at += 1
        high = self._class_char(opened)
        if high < low:
            raise self._fault("a range whose end is before its start", "the lower character first", start)
        return ((low, high),)

    def _class_char(self, opened: int) -> int:
        char = self._peek()
        if char == "":
            raise self._fault("a [ that nothing closes", "]", opened)
        if char == "[":
            raise self._fault("a bare [ in a class", "\\[ for the character itself")
        if char == "\\":
            return self._escaped_char()
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise self._fault("half a surrogate pair", "a whole character")
        self.at += 1
        return ord(char)

    def _check_quotable(self, ranges: _Ranges, negated: bool, opened: int) -> None:
        inside = {char for char in _UNQUOTABLE if any(low <= char <= high for low, high in ranges)}
        if negated and inside != _UNQUOTABLE:
            raise self._fault(
                "a class that matches what JSON must escape", '[^"\\\\\\x00-\\x1f…] or the characters', opened
            )
        if not negated and inside:
            raise self._fault("a class that matches what JSON must escape", "other characters", opened)


def _is_count(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= 6
