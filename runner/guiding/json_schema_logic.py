"""Questions about a whole JSON schema: may two schemas take one value, and can every answer come to its end.

Pure functions over schemas whose keywords have been checked; `references` leads from a pointer to its schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

import orjson

from trtb.runner.findings import shown
from trtb.runner.guiding.guide_faults import GuideError

_ALL_TYPES: Final = frozenset({"object", "array", "string", "number", "boolean", "null"})
_MAX_BRANCHES: Final = 64

_References = Mapping[str, Any]


def is_of_type(value: Any, name: str) -> bool:
    """Say whether a JSON value is of a type, as JSON Schema means it.

    >>> is_of_type(1, "number"), is_of_type(1.0, "integer"), is_of_type(True, "integer")
    (True, True, False)
    """
    if name == "integer":
        return _type_of(value) == "number" and float(value).is_integer()
    return _type_of(value) == name


def are_disjoint(branches: Sequence[Any], references: _References) -> bool:
    """Say whether it is plain that no value obeys two of the schemas; False where it is not plain."""
    if len(branches) > _MAX_BRANCHES:
        return False
    resolved = [_resolve(branch, references) for branch in branches]
    return all(_differ(one, other, references) for one, other in combinations(resolved, 2))


def check_endings(root: Any, references: _References) -> None:
    """Raise GuideError where a definition only ever leads back to one, so that an answer could not end."""
    ending: set[str] = set()
    while more := {
        name for name, schema in references.items() if name not in ending and _ends(schema, ending)
    }:
        ending |= more
    endless = sorted(set(references) - ending)
    if endless or not _ends(root, ending):
        name = endless[0] if endless else "#"
        raise GuideError(f"{shown(name)} never ends; expected a way out, such as an optional property")
    for name in references:
        _check_moves_on(name, references)


def _check_moves_on(name: str, references: _References) -> None:
    """Refuse a definition that leads to itself without a character between."""
    seen: set[str] = set()
    waiting = list(_bare_references(references[name]))
    while waiting:
        other = waiting.pop()
        if other == name:
            raise GuideError(f"{shown(name)} is itself again; expected an object or a list between")
        if other not in seen:
            seen.add(other)
            waiting.extend(_bare_references(references[other]))


def _bare_references(schema: Any) -> list[str]:
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return [schema["$ref"]]
    branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())]
    return [name for branch in branches for name in _bare_references(branch)]


def _ends(schema: Any, ending: set[str]) -> bool:
    """Say whether some value obeys the schema, given the references for which that is known."""
    if not isinstance(schema, dict):
        return bool(schema)
    if "$ref" in schema:
        return schema["$ref"] in ending
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return any(_ends(branch, ending) for branch in schema[key])
    types = schema.get("type")
    if "const" in schema or "enum" in schema or types is None:
        return True
    names = types if isinstance(types, list) else [types]
    return any(_type_ends(schema, name, ending) for name in names)


def _type_ends(schema: dict[str, Any], name: str, ending: set[str]) -> bool:
    if name == "object":
        properties = schema.get("properties", {})
        return all(_ends(properties[key], ending) for key in schema.get("required", ()))
    if name == "array":
        needed = list(schema.get("prefixItems", ()))
        if schema.get("minItems", 0) > len(needed):
            needed.append(schema.get("items", True))
        return all(_ends(item, ending) for item in needed)
    return True


def _resolve(schema: Any, references: _References) -> Any:
    """Follow references, and lists of one schema, to what they stand for."""
    for _ in range(len(references) + 8):
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            schema = references[schema["$ref"]]
        elif "allOf" in schema:
            schema = schema["allOf"][0]
        else:
            break
    return schema


def _differ(one: Any, other: Any, references: _References) -> bool:
    if not _types_of(one).intersection(_types_of(other)):
        return True
    values, others = _values_of(one), _values_of(other)
    if values is not None and others is not None:
        return not values & others
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    return _types_of(one) == _types_of(other) == {"object"} and any(
        _differ_in(one["properties"][name], other["properties"][name], references)
        for name in set(one.get("required", ())) & set(other.get("required", ()))
    )


def _differ_in(one: Any, other: Any, references: _References) -> bool:
    one, other = _resolve(one, references), _resolve(other, references)
    values, others = _values_of(one), _values_of(other)
    return values is not None and others is not None and not values & others


def _types_of(schema: Any) -> frozenset[str]:
    values = schema if isinstance(schema, dict) else {}
    if "const" in values or "enum" in values:
        return frozenset(_type_of(value) for value in values.get("enum", [values.get("const")]))
    types = values.get("type")
    if types is None:
        return _ALL_TYPES
    names = types if isinstance(types, list) else [types]
    return frozenset("number" if name == "integer" else name for name in names)


def _values_of(schema: Any) -> set[bytes] | None:
    if isinstance(schema, dict) and ("const" in schema or "enum" in schema):
        return {_identity(value) for value in schema.get("enum", [schema.get("const")])}
    return None


def _identity(value: Any) -> bytes:
    """Return what equal JSON values share: 1 and 1.0 are one number."""
    if _type_of(value) == "number":
        value = float(value)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
