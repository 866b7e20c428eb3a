"""The parameters that constrain an answer: OpenAI's response_format, and the guided extensions."""

from __future__ import annotations

from typing import Any

import orjson

from trtb.runner.findings import Faults, invalid, kind_of, shown, unsupported
from trtb.runner.guiding import guides
from trtb.runner.guiding.guides import Guide

_KINDS = ("json", "regex", "choice", "grammar")
_ONE_AT_MOST = "one constraint at most"


def check(body: dict[str, Any], faults: Faults, *, can_guide: bool) -> Guide | None:
    """Return what the answer is constrained to, or None; faults of what is given are added."""
    found: list[tuple[str, Guide]] = []
    for path, kind, value in _given(body, faults):
        guide = _guide(path, kind, value, faults)
        if guide is not None:
            found.append((path, guide))
    if not found:
        return None
    path, guide = found[0]
    if len(found) > 1:
        faults.add(invalid(found[1][0], f"given beside {path}", _ONE_AT_MOST))
    elif not can_guide:
        faults.add(unsupported(path, "a constraint", "none", "this engine cannot constrain its answers"))
    elif (problem := guides.check(guide)) is not None:
        faults.add(unsupported(path, problem, "what the engine can be held to"))
    return guide


def _given(body: dict[str, Any], faults: Faults) -> list[tuple[str, str, Any]]:
    """Return path, kind and value of every constraint that a body names."""
    given = [(f"body.guided_{kind}", kind, body.get(f"guided_{kind}")) for kind in _KINDS]
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        given += [(f"body.structured_outputs.{kind}", kind, outputs.get(kind)) for kind in _KINDS]
        for key in sorted(outputs.keys() - set(_KINDS)):
            if outputs[key] is not None:
                path = f"body.structured_outputs.{key}"
                faults.add(unsupported(path, kind_of(outputs[key]), "json, regex, choice or grammar"))
    elif outputs is not None:
        faults.add(invalid("body.structured_outputs", kind_of(outputs), "an object"))
    if (response_format := body.get("response_format")) is not None:
        given += _response_format("body.response_format", response_format, faults)
    return [entry for entry in given if entry[2] is not None]


def _response_format(path: str, value: Any, faults: Faults) -> list[tuple[str, str, Any]]:
    if not isinstance(value, dict):
        faults.add(invalid(path, kind_of(value), "an object with a type"))
        return []
    kind = value.get("type")
    if kind == "json_object":
        return [(path, "json", {"type": "object"})]
    if kind == "json_schema":
        return _named_schema(f"{path}.json_schema", value.get("json_schema"), faults)
    if kind != "text":
        faults.add(invalid(f"{path}.type", shown(kind), "text, json_object or json_schema"))
    return []


def _named_schema(path: str, value: Any, faults: Faults) -> list[tuple[str, str, Any]]:
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(value, dict):
        faults.add(invalid(path, kind_of(value), "an object with name and schema"))
    elif not isinstance(value.get("name"), str):
        faults.add(invalid(f"{path}.name", kind_of(value.get("name")), "a string"))
    elif not isinstance(schema, dict):
        faults.add(invalid(f"{path}.schema", kind_of(schema), "a JSON schema, an object"))
    else:
        return [(f"{path}.schema", "json", schema)]
    return []


def _guide(path: str, kind: str, value: Any, faults: Faults) -> Guide | None:
    if kind == "json":
        return _schema(path, value, faults)
    if kind == "choice":
        return _choice(path, value, faults)
    if not isinstance(value, str) or not value:
        faults.add(invalid(path, kind_of(value), "a string that is not empty"))
        return None
    return Guide("regex" if kind == "regex" else "ebnf_grammar", value)


def _schema(path: str, value: Any, faults: Faults) -> Guide | None:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            faults.add(invalid(path, "a string that is not JSON", "a JSON schema"))
            return None
    if not isinstance(value, dict):
        faults.add(invalid(path, kind_of(value), "a JSON schema, an object"))
        return None
    return Guide("json_schema", orjson.dumps(value).decode())  # its keys' order is the answer's order


def _choice(path: str, value: Any, faults: Faults) -> Guide | None:
    is_sound = isinstance(value, list) and value and all(isinstance(each, str) and each for each in value)
    if not is_sound:
        faults.add(invalid(path, kind_of(value), "a list of strings, none empty"))
        return None
    return Guide("ebnf_grammar", "root ::= " + " | ".join(_quoted(each) for each in dict.fromkeys(value)))


def _quoted(text: str) -> str:
    """Write a string as a literal of the grammar's language."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'
