"""Read the JSON schemas that the engine compiles and holds an answer to, keyword by keyword; refuse the rest.

Every keyword is on a list here because answers were seen to obey it; a keyword that is on none is refused by
its name, since the engine drops most of what it does not know without a word, and some of what it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trtb.runner.findings import kind_of, shown, shown_key
from trtb.runner.guiding.guide_faults import MAX_DEPTH, MAX_VALUES, GuideError
from trtb.runner.guiding.json_schema_logic import are_disjoint, check_endings, is_of_type
from trtb.runner.guiding.json_schema_values import BOUNDS, check_integer, check_number, check_value
from trtb.runner.guiding.regex_guide import check_pattern

MAX_PATTERN_REPEATS: Final = 1024
MAX_PROPERTIES: Final = 200
MAX_CHOSEN_PROPERTIES: Final = 32  # with maxProperties: the engine writes a rule for each, and each number

ANNOTATIONS: Final = frozenset({
    "title", "description", "default", "examples", "$schema", "$comment", "$defs", "definitions",
    "deprecated", "readOnly", "writeOnly", "discriminator",
})  # fmt: skip

FORMATS: Final = frozenset({"duration", "email", "hostname", "ipv6", "uri", "uuid"})

_KEYWORDS: Final[dict[str, frozenset[str]]] = {
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "maxProperties",
    }),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "format"}),
    "integer": BOUNDS,
    "number": BOUNDS,
    "boolean": frozenset(),
    "null": frozenset(),
}  # fmt: skip

_COMBINERS: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_REFERENCES: Final = ("#/$defs/", "#/definitions/")
_COUNTED: Final = r"""a pattern such as ^[^"\\\x00-\x1f]{2,40}$ (counted strings may hold raw tabs)"""
# what to do instead, where there is something
_INSTEAD: Final = {
    "minLength": _COUNTED,
    "maxLength": _COUNTED,
    "minProperties": "required names: an answer may repeat the names that it chooses",
    "uniqueItems": "a check of the answer: the engine does not hold an answer to it",
    "unevaluatedProperties": "additionalProperties: false",
    "unevaluatedItems": "items: false",
    "nullable": 'a type such as ["string", "null"]',
}
_NO_PROPERTIES: Final[dict[str, Any]] = {}


def check_schema(schema: Any) -> None:
    """Raise GuideError where the engine would not compile the schema, or not hold an answer to all of it."""
    _Reader(schema).read()


class _Reader:
    """One pass over a schema and over every definition that it leads to."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.references: dict[str, Any] = {}
        self.waiting: list[str] = []
        self.size = 0
        self.num_repeats = 0

    def read(self) -> None:
        if not isinstance(self.root, dict):
            raise GuideError(f"#: {shown(self.root)}; expected a schema, an object")
        self._schema(self.root, "#", 0)
        while self.waiting:
            pointer = self.waiting.pop()
            self._schema(self.references[pointer], pointer, 0)
        check_endings(self.root, self.references)

    def _grow(self, size: int, path: str) -> None:
        self.size += size
        if self.size > MAX_VALUES:
            raise GuideError(f"{path}: more than {MAX_VALUES} values in all; expected a smaller schema")

    def _schema(self, schema: Any, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise GuideError(f"{path}: too deep; expected at most {MAX_DEPTH} schemas inside each other")
        self._grow(1, path)
        if schema is True:
            return
        if schema is False:
            raise GuideError(f"{path}: false, which no value obeys; expected a schema")
        if not isinstance(schema, dict):
            raise GuideError(f"{path}: {kind_of(schema)}; expected a schema, an object")
        asserting = [key for key in schema if key not in ANNOTATIONS and not (key == "$id" and path == "#")]
        combiner = next((key for key in _COMBINERS if key in schema), None)
        if combiner:
            self._combiner(schema, combiner, asserting, path, depth)
        elif "type" in schema:
            self._typed(schema, asserting, path, depth)
        elif asserting:
            known = any(asserting[0] in keywords for keywords in _KEYWORDS.values())
            if not known:
                raise _unknown(path, asserting[0])
            raise GuideError(
                f"{path}/{shown_key(asserting[0])}: no type beside it; expected the type that it is about"
            )

    def _combiner(
        self, schema: dict[str, Any], name: str, asserting: list[str], path: str, depth: int
    ) -> None:
        allowed = {name, "type"} if name in ("const", "enum") else {name}
        for key in asserting:
            if key not in allowed:
                raise GuideError(f"{path}/{shown_key(key)}: ignored beside {name}; expected {name} alone")
        value = schema[name]
        path = f"{path}/{name}"
        if name == "$ref":
            self._reference(value, path)
        elif name in ("const", "enum"):
            self._values([value] if name == "const" else _list(value, path), schema, path)
        else:
            branches = _list(value, path)
            if name == "allOf" and len(branches) != 1:
                raise GuideError(f"{path}: {len(branches)} schemas; expected one (the engine merges none)")
            for index, branch in enumerate(branches):
                self._schema(branch, f"{path}/{index}", depth + 1)
            if name == "oneOf" and not are_disjoint(branches, self.references):
                raise GuideError(
                    f"{path}: schemas that one value may obey together; expected anyOf, or schemas told apart"
                    " by type, by const or by a required property with a const"
                )

    def _reference(self, pointer: Any, path: str) -> None:
        prefix = next((p for p in _REFERENCES if isinstance(pointer, str) and pointer.startswith(p)), None)
        if pointer == "#":
            self.references["#"] = self.root
            return
        if prefix is None or set(pointer[len(prefix) :]) & set("/~%"):
            raise GuideError(f"{path}: {shown(pointer)}; expected #, #/$defs/NAME or #/definitions/NAME")
        definitions = self.root.get(prefix[2:-1]) if isinstance(self.root, dict) else None
        name = pointer[len(prefix) :]
        if not isinstance(definitions, dict) or name not in definitions:
            raise GuideError(f"{path}: {shown(pointer)} is not there; expected a definition of the schema")
        if pointer not in self.references:
            self.references[pointer] = definitions[name]
            self.waiting.append(pointer)

    def _values(self, values: list[Any], schema: dict[str, Any], path: str) -> None:
        types = _types(schema, path) if "type" in schema else None
        for index, value in enumerate(values):
            self._grow(1, path)
            place = path if path.endswith("const") else f"{path}/{index}"
            check_value(value, place)
            if types and not any(is_of_type(value, name) for name in types):
                raise GuideError(f"{place}: {shown(value)}; expected a value of type {' or '.join(types)}")

    def _typed(self, schema: dict[str, Any], asserting: list[str], path: str, depth: int) -> None:
        types = _types(schema, path)
        for key in asserting:
            if key != "type" and not any(key in _KEYWORDS[name] for name in types):
                raise _unknown(path, key, types)
        readers: dict[str, Callable[[dict[str, Any], str, int], None]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
        }
        if "integer" in types:
            check_integer(schema, path)
        if "number" in types:
            check_number(schema, path)
        for name in types:
            if name in readers:
                readers[name](schema, path, depth)

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> None:
        properties = _mapping(schema, "properties", path)
        for name, value in properties.items():
            place = f"{path}/properties/{_escaped(name)}"
            if any(char < " " or char in '"\\' for char in name):
                raise GuideError(f"{place}: a name that JSON must escape; expected other characters")
            self._schema(value, place, depth + 1)
        self._required(schema, properties, path)
        rest = schema.get("additionalProperties", False)
        if rest is not False:
            place = f"{path}/additionalProperties"
            for other in ("properties", "patternProperties"):
                if schema.get(other):
                    raise GuideError(
                        f"{place}: beside {other}, which it would overrule; expected false, or no {other}"
                    )
            self._schema(rest, place, depth + 1)
        if "patternProperties" in schema:
            self._pattern_properties(schema, path, depth)
        self._num_properties(schema, properties, path)

    def _required(self, schema: dict[str, Any], properties: dict[str, Any], path: str) -> None:
        required = schema.get("required", [])
        if not isinstance(required, list):
            raise GuideError(f"{path}/required: {kind_of(required)}; expected a list of names")
        for index, name in enumerate(required):
            if not isinstance(name, str) or name not in properties:
                raise GuideError(
                    f"{path}/required/{index}: {shown(name)} is not among the properties, and is ignored;"
                    " expected a name in properties"
                )

    def _pattern_properties(self, schema: dict[str, Any], path: str, depth: int) -> None:
        patterns = _mapping(schema, "patternProperties", path)
        if len(patterns) != 1 or schema.get("properties"):
            raise GuideError(
                f"{path}/patternProperties: {len(patterns)} patterns, or other properties beside them;"
                " expected one pattern alone (a name that two fit is held to one only)"
            )
        for pattern, value in patterns.items():
            place = f"{path}/patternProperties/{_escaped(pattern)}"
            _check_pattern(pattern, place)
            self._grow(1, place)
            self._schema(value, place, depth + 1)

    def _num_properties(self, schema: dict[str, Any], properties: dict[str, Any], path: str) -> None:
        high = _count(schema, "maxProperties", path)
        if high is not None and high < len(schema.get("required", [])):
            raise GuideError(f"{path}/maxProperties: {high}; expected at least what is required")
        most = MAX_PROPERTIES if high is None else MAX_CHOSEN_PROPERTIES
        if len(properties) > most:
            raise GuideError(f"{path}/properties: {len(properties)}; expected at most {most}")

    def _array(self, schema: dict[str, Any], path: str, depth: int) -> None:
        prefix = _list(schema["prefixItems"], f"{path}/prefixItems") if "prefixItems" in schema else []
        for index, item in enumerate(prefix):
            self._schema(item, f"{path}/prefixItems/{index}", depth + 1)
        items = schema.get("items", False)
        if items is not False:
            self._schema(items, f"{path}/items", depth + 1)
        low = _count(schema, "minItems", path)
        high = _count(schema, "maxItems", path)
        self._grow(max(low or 0, high or 0), path)
        if (low or high is not None) and "items" not in schema and not prefix:
            raise GuideError(f"{path}: a number of items without items; expected items beside it")
        if low and (low > len(prefix) and items is False):
            raise GuideError(f"{path}/minItems: {low}; expected items: a schema for those after prefixItems")
        if high is not None and high < max(low or 0, len(prefix)):
            raise GuideError(f"{path}/maxItems: {high}; expected at least minItems and every prefixItems")

    def _string(self, schema: dict[str, Any], path: str, depth: int) -> None:  # noqa: ARG002
        given = [key for key in ("pattern", "format") if key in schema]
        if len(given) > 1:
            raise GuideError(f"{path}/pattern: ignored beside format; expected one of them")
        if "pattern" in schema:
            self.num_repeats += _check_pattern(schema["pattern"], f"{path}/pattern")
            if self.num_repeats > MAX_PATTERN_REPEATS:
                raise GuideError(
                    f"{path}/pattern: the patterns so far repeat {self.num_repeats} characters;"
                    f" expected at most {MAX_PATTERN_REPEATS}"
                )
        form = schema.get("format", "uuid")
        if not isinstance(form, str) or form not in FORMATS:
            raise GuideError(
                f"{path}/format: {shown(form)}, which the engine ignores or checks in part;"
                f" expected a pattern, or one of {', '.join(sorted(FORMATS))}"
            )


def _unknown(path: str, key: str, types: list[str] | None = None) -> GuideError:
    place = f"{path}/{shown_key(key)}"
    if key in _INSTEAD:
        return GuideError(f"{place}: not enforced; expected {_INSTEAD[key]}")
    about = f" for {' or '.join(types)}" if types else ""
    return GuideError(f"{place}: not a keyword that the engine enforces{about}; expected it left out")


def _types(schema: dict[str, Any], path: str) -> list[str]:
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in types:
        if not isinstance(name, str) or name not in _KEYWORDS:
            raise GuideError(f"{path}/type: {shown(name)}; expected {', '.join(_KEYWORDS)}")
    if not types or len(set(types)) < len(types):
        raise GuideError(f"{path}/type: no type, or one twice; expected different types")
    return types


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise GuideError(f"{path}: {kind_of(value)}; expected a list, not empty")
    return value


def _mapping(schema: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    value = schema.get(key, _NO_PROPERTIES)
    if not isinstance(value, dict):
        raise GuideError(f"{path}/{key}: {kind_of(value)}; expected an object")
    return value


def _count(schema: dict[str, Any], key: str, path: str) -> int | None:
    value = schema.get(key)
    if key in schema and (type(value) is not int or not 0 <= value <= MAX_VALUES):
        raise GuideError(f"{path}/{key}: {shown(value)}; expected an integer from 0 to {MAX_VALUES}")
    return value


def _check_pattern(pattern: Any, path: str) -> int:
    if not isinstance(pattern, str):
        raise GuideError(f"{path}: {kind_of(pattern)}; expected a regular expression")
    try:
        return check_pattern(pattern)
    except GuideError as exc:
        raise GuideError(f"{path}: {exc.message}") from exc


def _escaped(name: str) -> str:
    """Return a property's name as a JSON pointer holds it, on one line."""
    return shown(name)[1:-1].replace("~", "~0").replace("/", "~1")
