"""Questions about the rules of a grammar: can each come to its end, can it be empty, does it lead to itself.

Pure functions over rules that have been read. The engine constrains nothing where a rule never ends, and
was seen to search for minutes, the whole batch waiting, where one rule leads to itself without a character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One element of a sequence with its quantifier: a rule by its name, a group, or characters."""

    at: int
    name: str = ""
    group: tuple[tuple[Part, ...], ...] = ()
    is_empty: bool = False  # the text ""
    low: int = 1
    is_repeated: bool = False  # may stand more than once


Alternatives = tuple[tuple[Part, ...], ...]
Rules = Mapping[str, Alternatives]


def ending_rules(rules: Rules) -> set[str]:
    """Return the rules that some finite text follows."""

    def ends(part: Part, known: set[str]) -> bool:
        if part.low == 0:
            return True
        if part.name:
            return part.name in known
        return not part.group or _any_all(part.group, lambda inner: ends(inner, known))

    return _least(rules, ends)


def empty_rules(rules: Rules) -> set[str]:
    """Return the rules that the empty text follows."""
    return _least(rules, _can_be_empty)


def find_empty_repetition(rules: Rules, empty: set[str]) -> Part | None:
    """Return a part that repeats what may be empty."""
    for part in _all_parts(rules):
        content = Part(part.at, part.name, part.group, part.is_empty)
        if part.is_repeated and _can_be_empty(content, empty):
            return part
    return None


def find_circle(rules: Rules, empty: set[str]) -> str | None:
    """Return a rule that leads to itself with nothing around it."""
    leads_to = {name: set(_bare_names(alternatives, empty)) for name, alternatives in rules.items()}
    for name, first in leads_to.items():
        seen: set[str] = set()
        waiting = list(first)
        while waiting:
            other = waiting.pop()
            if other == name:
                return name
            if other not in seen:
                seen.add(other)
                waiting.extend(leads_to[other])
    return None


def _can_be_empty(part: Part, empty: set[str]) -> bool:
    if part.low == 0 or part.is_empty:
        return True
    if part.name:
        return part.name in empty
    return bool(part.group) and _any_all(part.group, lambda inner: _can_be_empty(inner, empty))


def _bare_names(alternatives: Alternatives, empty: set[str]) -> Iterator[str]:
    for parts in alternatives:
        solid = [part for part in parts if not _can_be_empty(part, empty)]
        for part in parts:
            if any(other is not part for other in solid) or part.low > 1:
                continue
            if part.name:
                yield part.name
            yield from _bare_names(part.group, empty)


def _all_parts(rules: Rules) -> Iterator[Part]:
    waiting = [part for alternatives in rules.values() for parts in alternatives for part in parts]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(inner for parts in part.group for inner in parts)


def _least(rules: Rules, holds: Callable[[Part, set[str]], bool]) -> set[str]:
    """Return the rules for which it holds, taking it for no rule until it is known."""
    known: set[str] = set()

    def holds_now(part: Part) -> bool:
        return holds(part, known)

    grown = True
    while grown:
        more = {name for name in set(rules) - known if _any_all(rules[name], holds_now)}
        known |= more
        grown = bool(more)
    return known


def _any_all(alternatives: Alternatives, holds: Callable[[Part], bool]) -> bool:
    return any(all(holds(part) for part in parts) for parts in alternatives)
