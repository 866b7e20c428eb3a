r"""Decide, before anything is sent, whether the engine can hold an answer to a guide.

A guide that the engine cannot compile kills its pipeline, and a keyword that it does not know it drops
without a word. So a guide is accepted only where the engine compiles it *and* enforces all of it.
Seen with openvino-genai 2026.4.1.0, by sampling answers that push against each construct:

* enforced: type, properties, required, items, prefixItems, minItems, maxItems, enum, const, anyOf, allOf of
  one, $ref to a definition, recursive too, additionalProperties without properties, one patternProperties,
  patterns without characters that JSON escapes, integer bounds from -100 to 100
* dropped: not, if, oneOf's "only one", allOf of several, uniqueItems, contains, dependent*, multipleOf,
  whatever stands beside $ref, anyOf, enum or const, a required name that is no property, external $ref
* wrong: bounds of numbers, an integer's minimum alone (7 lets 1 through), minLength and maxLength (raw tabs),
  formats date, time, date-time and ipv4, additionalProperties beside properties, `.` (line breaks), `[\^a]`,
  `\x5ea`, `a^b`, `[^\W]`; a rule that never ends constrains nothing
* slow, for minutes, in the middle of a step: rules that lead to themselves, repetitions of what may be empty,
  counts over broad classes
* fatal: unknown types, false, empty enums, minItems without items, names with quotes, lookaround, \b, \p,
  back-references, flags, empty alternatives, undefined rules, a grammar without a root

llguidance reads schemas and expressions too: one that a second engine refuses is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import orjson

from trtb.runner.guiding.ebnf import check_grammar
from trtb.runner.guiding.guide_faults import MAX_BYTES, GuideError
from trtb.runner.guiding.json_schema import check_schema
from trtb.runner.guiding.regex_guide import check_regex

GuideKind = Literal["json_schema", "regex", "ebnf_grammar"]

MAX_CHECKED_GUIDES: Final = 256  # of up to 64 KiB each


@dataclass(frozen=True, slots=True)
class Guide:
    """What an answer must be: a JSON schema in canonical form, a regular expression, or a grammar."""

    kind: GuideKind
    text: str


@lru_cache(maxsize=MAX_CHECKED_GUIDES)
def check(guide: Guide) -> str | None:
    """Return the fault of a guide that the engine would not compile or not enforce; None where it would.

    A fault names the place: a JSON pointer in a schema, a column in an expression or a grammar.
    """
    try:
        _check(guide)
    except GuideError as exc:
        return exc.message
    return None


def _check(guide: Guide) -> None:
    num_bytes = len(guide.text.encode(errors="surrogatepass"))
    if num_bytes > MAX_BYTES:
        raise GuideError(f"{num_bytes} bytes; expected at most {MAX_BYTES}")
    if guide.kind == "ebnf_grammar":
        check_grammar(guide.text)
    elif guide.kind == "regex":
        check_regex(guide.text)
        _check_twice(guide)
    else:
        check_schema(_parse(guide.text))
        _check_twice(guide)


def _parse(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise GuideError(f"#: no JSON at column {exc.colno}; expected a JSON schema") from exc


def _check_twice(guide: Guide) -> None:
    from llguidance import LLMatcher

    if guide.kind == "regex":
        grammar = LLMatcher.grammar_from_regex(guide.text)
    else:
        # that the schemas of a oneOf exclude each other is known by now
        grammar = LLMatcher.grammar_from_json_schema(guide.text, overrides={"coerce_one_of": True})
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if is_error:
        raise GuideError(f"{'; '.join(messages)}; expected what two readers understand")
