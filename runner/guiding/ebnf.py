"""Read the grammars that the engine compiles, in its form of EBNF (`root ::= "yes" | "no"`); refuse the rest.

A rule that can never end is as bad as a fault: the engine compiles it and then constrains nothing at all.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field, replace
from typing import Final

from trtb.runner.guiding.ebnf_rules import (
    Alternatives,
    Part,
    empty_rules,
    ending_rules,
    find_circle,
    find_empty_repetition,
)
from trtb.runner.guiding.guide_faults import BROAD, MAX_DEPTH, Cost, GuideError

MAX_RULES: Final = 256

_MANY: Final = 128  # characters of a broad range
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_BLANK: Final = re.compile(r"(?:[ \t\n\r]|#[^\n]*)*")
_COUNT: Final = re.compile(r"\{(\d{1,6})(,?)(\d{0,6})\}", re.ASCII)
_ESCAPES: Final = {"n": 10, "r": 13, "t": 9, "\\": 0x5C, '"': 0x22, "'": 0x27}
_CLASS_ESCAPES: Final = {"]": 0x5D, "-": 0x2D, "^": 0x5E}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_RESERVED: Final = frozenset({"TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken", "true", "false"})


@dataclass(slots=True)
class _Rule:
    """One rule: where it stands, its alternatives, and where they name which rule."""

    at: int
    alternatives: Alternatives = ()
    names: dict[str, int] = field(default_factory=dict)


def check_grammar(text: str) -> None:
    """Raise GuideError where the engine would not compile the grammar, or would not end an answer by it."""
    _Reader(text).read()


class _Reader:
    """One pass over one grammar, then the questions that need all of its rules."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.rules: dict[str, _Rule] = {}
        self.rule = _Rule(0)
        self.cost = Cost()

    def read(self) -> None:
        self._skip()
        while self.at < len(self.text):
            self._rule()
        if "root" not in self.rules:
            raise GuideError("no rule called root; expected one, which the answer follows", "root ::= …")
        for rule in self.rules.values():
            for name, at in rule.names.items():
                if name not in self.rules:
                    raise self._fault(f'the rule "{_shown(name)}" is nowhere defined', "its definition", at)
        self._check_rules()

    def _check_rules(self) -> None:
        rules = {name: rule.alternatives for name, rule in self.rules.items()}
        ending = ending_rules(rules)
        for name, rule in self.rules.items():
            if name not in ending:
                raise self._fault(
                    f'the rule "{_shown(name)}" never ends', "an alternative without itself", rule.at
                )
        empty = empty_rules(rules)
        if part := find_empty_repetition(rules, empty):
            raise self._fault("a repetition of what may be empty", "+ or no quantifier within it", part.at)
        if circle := find_circle(rules, empty):
            at = self.rules[circle].at
            raise self._fault(f'the rule "{_shown(circle)}" is itself again', "a character between", at)

    def _fault(self, found: str, expected: str, at: int | None = None) -> GuideError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return GuideError(f"line {line}, column {column}: {found}; expected {expected}")

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _skip(self) -> None:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _name(self) -> str:
        match = _NAME.match(self.text, self.at)
        return match.group() if match else ""

    def _starts_rule(self) -> bool:
        name = self._name()
        return bool(name) and re.compile(r"[ \t]*::=").match(self.text, self.at + len(name)) is not None

    def _rule(self) -> None:
        start = self.at
        name = self._name()
        if not self._starts_rule():
            raise self._fault("no rule", 'name ::= "…"')
        if self.text[self.text.rfind("\n", 0, start) + 1 : start].strip():
            raise self._fault("a rule in the middle of a line", "each rule on a line of its own")
        if name in _RESERVED:
            raise self._fault(f"the rule name {name}", "another name: the engine keeps this one")
        if name in self.rules:
            raise self._fault(f'a second rule "{_shown(name)}"', "one rule of each name")
        if len(self.rules) == MAX_RULES:
            raise self._fault("one rule more", f"at most {MAX_RULES}")
        self.rule = self.rules[name] = _Rule(start)
        self.at = self.text.index("::=", start) + 3
        self.rule.alternatives, _ = self._alternation(depth=0)
        if self.at < len(self.text) and not self._starts_rule():
            raise self._fault(f"{self._peek()!r}", "an element, | or a new rule")

    def _alternation(self, depth: int) -> tuple[Alternatives, int]:
        """Return the alternatives and their expanded size."""
        if depth > MAX_DEPTH:
            raise self._fault("groups too deep", f"at most {MAX_DEPTH} inside each other")
        parts, size = self._sequence(depth)
        alternatives = [parts]
        while self._peek() == "|":
            self.at += 1
            parts, more = self._sequence(depth)
            alternatives.append(parts)
            size += more
        return tuple(alternatives), size

    def _sequence(self, depth: int) -> tuple[tuple[Part, ...], int]:
        parts: list[Part] = []
        size = 0
        self._skip()
        while (char := self._peek()) not in ("", "|", ")") and not self._starts_rule():
            part, part_size = self._element(char, depth)
            low, copies, is_repeated = self._quantifier()
            self.cost.add(part_size, low, copies)
            size += part_size * copies
            parts.append(replace(part, low=low, is_repeated=is_repeated))
            self._skip()
        if not parts:
            raise self._fault("nothing", '"…", [...], (…) or the name of a rule; "" for the empty text')
        return tuple(parts), size

    def _element(self, char: str, depth: int) -> tuple[Part, int]:
        at = self.at
        if char == '"':
            length = self._string()
            return Part(at, is_empty=length == 0), max(length, 1)
        if char == "[":
            return Part(at), BROAD if self._class() else 1
        if char == "(":
            return self._group(depth)
        name = self._name()
        if not name:
            raise self._fault(f"{char!r}", '"…", [...], (…) or the name of a rule')
        if name in _RESERVED:
            raise self._fault(f"the name {name}", "another name: the engine keeps this one")
        self.rule.names.setdefault(name, at)
        self.at += len(name)
        return Part(at, name), 1

    def _group(self, depth: int) -> tuple[Part, int]:
        opened = self.at
        self.at += 1
        alternatives, size = self._alternation(depth + 1)
        if self._peek() != ")":
            raise self._fault("a ( that nothing closes", ")", opened)
        self.at += 1
        return Part(opened, group=alternatives), size

    def _quantifier(self) -> tuple[int, int, bool]:
        """Read what follows an element.

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
        if self._peek() and self._peek() in "*+?{":
            raise self._fault("two quantifiers in a row", "a group between them")
        return found

    def _count(self) -> tuple[int, int, bool]:
        match = _COUNT.match(self.text, self.at)
        if not match:
            raise self._fault("a malformed count", "{n}, {n,} or {n,m}, without blanks")
        is_open = bool(match[2]) and not match[3]
        low, high = int(match[1]), int(match[3] or match[1])
        if high < low:
            raise self._fault(f"a count from {low} to {high}", "the lower number first")
        if high == 0 and not is_open:
            raise self._fault("a count of 0", "a count of at least 1")
        self.at = match.end()
        return low, max(high, 1), is_open or high > 1

    def _string(self) -> int:
        """Read a quoted text and return its length."""
        opened = self.at
        self.at += 1
        length = 0
        while (char := self._peek()) != '"':
            if char in ("", "\n", "\r"):
                raise self._fault("a quoted text that does not end on its line", '"', opened)
            self._char(_ESCAPES)
            length += 1
        self.at += 1
        return length

    def _class(self) -> bool:
        """Read a class and say whether it may hold most characters."""
        opened = self.at
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        is_empty, is_wide = True, False
        while self._peek() != "]":
            start = self.at
            low = self._class_char(opened)
            if is_empty and low == ord("^"):
                raise self._fault("^ as the first character of the class", "it after another", start)
            is_empty = False
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                if self.text[start] == "-":
                    raise self._fault("a range from -", "- at the end of the class", start)
                self.at += 1
                high = self._class_char(opened)
                is_wide |= high - low > _MANY
                if high < low:
                    raise self._fault(
                        "a range whose end is before its start", "the lower character first", start
                    )
        if is_empty:
            raise self._fault("an empty class", "characters between [ and ]", opened)
        self.at += 1
        return negated or is_wide

    def _class_char(self, opened: int) -> int:
        if self._peek() in ("", "\n", "\r"):
            raise self._fault("a [ that does not end on its line", "]", opened)
        return self._char(_ESCAPES | _CLASS_ESCAPES)

    def _char(self, escapes: dict[str, int]) -> int:
        """Read one character, escaped or not."""
        start = self.at
        char = ord(self._peek())
        self.at += 1
        if char == 0x5C:
            name = self._peek()
            self.at += 1
            if name and name in _HEX_DIGITS:
                char = self._hex(name, _HEX_DIGITS[name])
            elif name and name in escapes:
                char = escapes[name]
            else:
                raise self._fault(f"the escape \\{name}", r"\n \r \t \\ \" \xHH \uHHHH \UHHHHHHHH", start)
        if char == 0 or 0xD800 <= char <= 0xDFFF or char > 0x10FFFF:
            raise self._fault("a NUL or half a surrogate pair", "a whole character", start)
        return char

    def _hex(self, name: str, num_digits: int) -> int:
        digits = self.text[self.at : self.at + num_digits]
        if len(digits) < num_digits or not set(digits) <= set(string.hexdigits):
            raise self._fault(f"\\{name}{digits}", f"{num_digits} hexadecimal digits after \\{name}")
        self.at += num_digits
        after = self._peek()
        if after and after in string.hexdigits:
            # the engine reads as many digits as there are
            raise self._fault(f"the digit {after} after \\{name}{digits}", "the character itself")
        return int(digits, 16)


def _shown(name: str) -> str:
    return name if len(name) <= 40 else name[:40] + "…"
