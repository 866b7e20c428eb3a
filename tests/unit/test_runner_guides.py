# ruff: noqa: E501 (one case beside the other reads better than one below the other)
"""What a guide may say: accepted is what the engine was seen to compile and enforce, refused is the rest."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.guiding.guides import Guide, check


def fault_of(schema: Any) -> str | None:
    return check(Guide("json_schema", orjson.dumps(schema).decode()))


def obj(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def arr(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


INT = {"type": "integer"}
STR = {"type": "string"}
NODE = obj(properties={"v": INT, "next": arr(items={"$ref": "#/$defs/n"})}, required=["v"])
CAT = obj(properties={"kind": {"const": "cat"}}, required=["kind"])
DOG = obj(properties={"kind": {"const": "dog"}}, required=["kind"])


@pytest.mark.parametrize(
    "schema",
    [
        {}, {"title": "any"}, INT, STR, {"type": "number"}, {"type": "boolean"}, {"type": "null"},
        {"type": ["integer", "null"]},
        obj(), obj(properties={"a": INT, "b": {}}, required=["a"], additionalProperties=False),
        obj(additionalProperties=INT, maxProperties=3), obj(patternProperties={"^x_[a-z]+$": INT}),
        arr(), arr(items=INT, minItems=2, maxItems=4), arr(prefixItems=[INT, STR], items=False),
        arr(prefixItems=[INT], items=STR, minItems=3),
        {"enum": ["red", 1, None, {"a": [1.5]}]}, {"type": "string", "enum": ["é", 'a"b']}, {"const": "x"},
        {"type": "integer", "minimum": 5, "maximum": 17}, {"type": "integer", "minimum": 0},
        {"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "maximum": 99},
        {"type": "number", "minimum": 0}, {"type": "number", "maximum": 10},
        {"type": "string", "pattern": "^[a-z]{3}$"}, {"type": "string", "format": "uuid"},
        {"type": "string", "pattern": r'^[^"\\\x00-\x1f]{2,40}$'},
        {"anyOf": [INT, STR]}, {"oneOf": [INT, STR]}, {"allOf": [INT], "description": "one"},
        {"oneOf": [CAT, DOG]}, {"oneOf": [{"$ref": "#/$defs/c"}, DOG], "$defs": {"c": CAT}, "discriminator": {"propertyName": "kind"}},
        {"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]},
        {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
        {"$ref": "#/definitions/n", "definitions": {"n": STR, "unused": {"not": {}}}},
        obj(properties={"v": INT, "c": {"$ref": "#"}}, required=["v"]),
        INT | {"$schema": "https://json-schema.org/draft/2020-12/schema", "default": 1, "examples": [2]},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_the_engine_enforces_is_accepted(schema: Any) -> None:
    assert fault_of(schema) is None


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (False, "#: false"), (True, "#: true"), ([], "#: a list"), ({"type": "foo"}, "#/type: "), ({"type": []}, "#/type: "),
        (obj(properties={"a": {"type": "foo"}}), "#/properties/a/type: "),
        (INT | {"not": {"const": 3}}, "#/not: "), (INT | {"multipleOf": 5}, "#/multipleOf: "),
        (INT | {"frobnicate": 1}, "#/frobnicate: "), (INT | {"minLength": 3}, "#/minLength: "),
        (STR | {"minLength": 3}, "#/minLength: "), (STR | {"maxLength": 3}, "#/maxLength: "),
        (STR | {"nullable": True}, "#/nullable: "), ({"minimum": 5}, "#/minimum: no type"),
        (obj(required=["z"]), '#/required/0: "z"'), (obj(required=[3]), "#/required/0: 3"),
        (obj(properties={"a": INT}, additionalProperties=True), "#/additionalProperties: "),
        (obj(properties={"a": INT}, additionalProperties=STR), "#/additionalProperties: "),
        (obj(properties={'a"b': INT}), '#/properties/a\\"b: '), (obj(properties={"a\n": INT}), "#/properties/a"),
        (obj(properties={"a/b": False}), "#/properties/a~1b: false"),
        (obj(patternProperties={"^a": INT, "b$": STR}), "#/patternProperties: 2"),
        (obj(properties={"ab": STR}, patternProperties={"^a": INT}), "#/patternProperties: "),
        (obj(patternProperties={'^a"$': INT}), '#/patternProperties/^a\\"$: '),
        (obj(propertyNames={"pattern": "a"}), "#/propertyNames: "), (obj(minProperties=2), "#/minProperties: "),
        (obj(properties={"a": INT}, required=["a"], maxProperties=0), "#/maxProperties: 0"),
        (obj(dependentRequired={"a": ["b"]}), "#/dependentRequired: "), (obj(**{"if": {}}), "#/if: "),
        (obj(unevaluatedProperties=False), "#/unevaluatedProperties: "),
        (arr(items=[INT]), "#/items: a list"), (arr(additionalItems=False), "#/additionalItems: "),
        (arr(items=INT, uniqueItems=True), "#/uniqueItems: "), (arr(contains=INT), "#/contains: "),
        (arr(minItems=1), "#: a number of items"), (arr(items=INT, minItems=3, maxItems=2), "#/maxItems: 2"),
        (arr(prefixItems=[INT], minItems=2), "#/minItems: 2"), (arr(items=INT, minItems=2.0), "#/minItems: 2.0"),
        (arr(prefixItems=[INT, INT], maxItems=1), "#/maxItems: 1"), (arr(prefixItems=[]), "#/prefixItems: "),
        ({"enum": []}, "#/enum: "), ({"type": "string", "enum": ["a", 1]}, "#/enum/1: 1"),
        ({"type": "integer", "const": "q"}, '#/const: "q"'), ({"const": 2**63}, "#/const: "),
        ({"enum": ["a"], "pattern": "a"}, "#/pattern: ignored beside enum"),
        ({"type": "object", "anyOf": [INT, STR]}, "#/type: ignored beside anyOf"), ({"anyOf": []}, "#/anyOf: "),
        ({"anyOf": [INT, False]}, "#/anyOf/1: false"), ({"allOf": [INT, {"minimum": 3}]}, "#/allOf: 2 schemas"),
        ({"oneOf": [INT, {"type": "number"}]}, "#/oneOf: "), ({"oneOf": [CAT, obj()]}, "#/oneOf: "),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "#/oneOf: "), ({"oneOf": [{}, STR]}, "#/oneOf: "),
        ({"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": INT}}, "#/minimum: ignored beside $ref"),
        ({"$ref": "https://example.com/x.json"}, "#/$ref: "), ({"$ref": "#/$defs/zz"}, "#/$ref: "),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": INT}}, "#/$ref: "), ({"$ref": "#here"}, "#/$ref: "),
        ({"$ref": "#/properties/a", "properties": {"a": INT}}, "#/properties: ignored beside $ref"),
        ({"$ref": "#"}, '"#" never ends'), (obj(properties={"c": {"$ref": "#"}}, required=["c"]), '"#" never'),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, INT]}}}, '"#/$defs/n" is itself'),
        ({"$ref": "#/$defs/n", "$defs": {"n": arr(items={"type": "x"})}}, "#/$defs/n/items/type: "),
        (INT | {"minimum": 7}, "#: a minimum of 7 alone"), (INT | {"maximum": -7}, "#: a maximum of -7 alone"),
        (INT | {"minimum": 8, "maximum": 7}, "#: no integer"), (INT | {"maximum": 10**6}, "#/maximum: "),
        (INT | {"exclusiveMinimum": 4, "exclusiveMaximum": 5}, "#: no integer"),
        (INT | {"minimum": 0.5}, "#/minimum: 0.5"), (INT | {"minimum": True}, "#/minimum: true"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "#/maximum: "),
        ({"type": "number", "exclusiveMinimum": 0}, "#/exclusiveMinimum: "),
        (STR | {"pattern": "a.c"}, "#/pattern: column 2: ."), (STR | {"pattern": 'a"'}, "#/pattern: column 2: "),
        (STR | {"pattern": "a|b"}, "#/pattern: column 2: an alternation"), (STR | {"pattern": 3}, "#/pattern: "),
        (STR | {"pattern": "[^a]"}, "#/pattern: column 1: "), (STR | {"pattern": r"\s"}, "#/pattern: column 1: "),
        (STR | {"pattern": "a", "format": "uuid"}, "#/pattern: ignored"), (STR | {"format": "date"}, "#/format: "),
        (STR | {"format": "time"}, "#/format: "), (STR | {"format": "ipv4"}, "#/format: "), (STR | {"format": "frob"}, "#/format: "),
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_is_refused_with_its_place(schema: Any, place: str) -> None:
    fault = fault_of(schema)
    assert fault is not None
    assert fault.startswith(place)
    assert "\n" not in fault


@pytest.mark.parametrize(
    "text",
    [
        "abc", "^abc$", "^a$|^b$", "a|b|cd", "(?:ab)+c?", "a{3}b{2,}c{1,4}", "a*?b+?c??", r"\d+\.\d{2}",
        r"\w\s\D\W\S", r"[\w.+-]+@[a-z]+", "[^,\n]{2}", r"[\]a]", "[a^]", "[-a]", "[a-]", r"\x41\u00e9[\x00-\x1f]",
        r"\(\)\[\]\{\}\*\+\?\^\$\|\\\/", "é+[一-龥]", r"\t\r\n\f\v", '"[\\"\\\\]', "((a|b)c){2}", "[^\n]*",
    ],
)  # fmt: skip
def test_an_expression_that_the_engine_means_is_accepted(text: str) -> None:
    assert check(Guide("regex", text)) is None


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("a.b", 2), ("a|", 3), ("(|a)b", 2), ("()", 2), ("(a", 1), ("a)", 2), ("[a", 1), ("[a-", 1), ("a\\", 2),
        ("a**", 3), ("a*+", 3), ("*a", 1), ("a|*", 3), ("a{,3}", 2), ("a{3,2}", 2), ("a{ 2}", 2), ("a{0}", 2),
        ("{", 1), ("a^b", 2), ("a$b", 2), ("(^a)", 2), (r"\bab", 1), (r"a\B", 2), ("(?i)a", 1), ("a(?=b)b", 2),
        ("(?<n>a)", 1), (r"(a)\1", 4), (r"\p{L}", 1), (r"\q", 1), (r"\A", 1), (r"\0", 1), (r"\x4", 1),
        (r"\x28a", 1), (r"[\x5ea]", 2), (r"[\^a]", 2), (r"[^\^a]", 3), ("[]a]", 1), ("[^]", 1), ("[z-a]", 2),
        (r"[a-\d]", 4), ("b(a*)*", 2), ("(a|b?){2,}", 1), ("((a?b?))+", 1), (r"[\w-z]", 4), (r"[^\W]", 3), ("[[]", 2), (r"\x00", 1), ("a}", 2), ("a{99999999999}", 2),
        ("a\ud800", 2),
    ],
)  # fmt: skip
def test_an_expression_is_refused_with_its_column(text: str, column: int) -> None:
    fault = check(Guide("regex", text))
    assert fault is not None
    assert fault.startswith(f"column {column}: ")


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "yes" | "no"', 'root::="a"', '# c\nroot ::= "a" # d\n', 'root ::= ""', 'root ::= ("" | "a")?',
        'root ::= root "a" | "b"', 'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"',
        'root ::= "a"\n  | "b"', 'root ::= (\n"a"\n| "b"\n)', 'root ::= "a"\r\nx ::= "b"\r\n', 'root ::= ( "b" root | x )\nx ::= "a"',
        r'root ::= "\n\t\\\"" [\x41-\x43] [^\n\]] [a\-z] "\u0041\U0001F600"', 'root ::= my-rule{2,3}\nmy-rule ::= [a-]',
    ],
)  # fmt: skip
def test_a_grammar_that_the_engine_compiles_is_accepted(text: str) -> None:
    assert check(Guide("ebnf_grammar", text)) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no rule called root"), ('x ::= "q"', "no rule called root"), ('root: "a"', "line 1, column 1: "),
        ("root ::= y", 'line 1, column 10: the rule "y" is nowhere defined'), ("root ::=", "line 1, column 9: "),
        ('root ::= "a" |', "line 1, column 15: "), ('root ::= | "a"', "line 1, column 10: "),
        ('root ::= "a"\nroot ::= "b"', 'line 2, column 1: a second rule "root"'), ("root ::= ()", "line 1, column 11: "),
        ("root ::= root", 'line 1, column 1: the rule "root" never ends'), ('root ::= "a" root', "line 1, column 1: "),
        ('root ::= ("a" root){2}', "line 1, column 1: "), ('root ::= "a"\nx ::= x', 'line 2, column 1: the rule "x"'),
        ("root ::= []", "line 1, column 10: "), (r"root ::= [\^a]", "line 1, column 11: "),
        ("root ::= [z-a]", "line 1, column 11: "), ('root ::= root | "a"', 'line 1, column 1: the rule "root" is itself again'), ('root ::= "a" | x? root x\nx ::= ""', 'line 1, column 1: the rule "root" is'),
        ('root ::= ("a"*)*', "line 1, column 10: a repetition of what"), ('root ::= "b" x{2}\nx ::= "a"?', "line 1, column 14: a repetition"),
        (r"root ::= [\d]", "line 1, column 11: "),
        (r'root ::= "\q"', "line 1, column 11: "), (r'root ::= "\x4"', "line 1, column 13: "),
        (r'root ::= "\x41a"', "line 1, column 15: "), ("root ::= 'a'", "line 1, column 10: "),
        ('root ::= "a', "line 1, column 10: "), ('root ::= "a"**', "line 1, column 14: "),
        ('root ::= "a"{,3}', "line 1, column 13: "), ('root ::= "a"{3,2}', "line 1, column 13: "),
        ('root ::= "a" x ::= "b"', "line 1, column 14: "), ('root ::= ("a"', "line 1, column 10: "),
        ('root ::= "a")', "line 1, column 13: "), ("root ::= .", "line 1, column 10: "),
        ('root ::= "a" (="b")', "line 1, column 15: "), ('root ::= TagDispatch(("a", x))', "line 1, column 10: "),
        ('root ::= true\ntrue ::= "b"', "line 1, column 10: "), ("root ::= [a\n]", "line 1, column 10: "),
    ],
)  # fmt: skip
def test_a_grammar_is_refused_with_its_place(text: str, fault: str) -> None:
    found = check(Guide("ebnf_grammar", text))
    assert found is not None
    assert found.startswith(fault)


def nested(depth: int) -> Any:
    schema: Any = INT
    for _ in range(depth):
        schema = arr(items=schema)
    return schema


@pytest.mark.parametrize(
    ("guide", "fault"),
    [
        (Guide("regex", "a" * 70_000), "70000 bytes; expected at most 65536"),
        (Guide("regex", "(ab{100}){500}"), "its counts repeat"),
        (Guide("regex", "(" * 500 + "a" + ")" * 500), "column 34: groups too deep"),
        (Guide("regex", "[^a]{50}"), "its counts repeat 294 characters or more, a broad class counted as 6"),
        (Guide("regex", "[a-z]?" * 200), "its optional parts come to"),
        (Guide("ebnf_grammar", 'root ::= "ab"{60000}'), "its counts repeat"),
        (Guide("ebnf_grammar", "root ::= " + "(" * 500 + '"a"' + ")" * 500), "line 1, column 43: groups too deep"),
        (Guide("ebnf_grammar", "\n".join(f'r{i} ::= "a"' for i in range(257))), "line 257, column 1: one rule more"),
        (Guide("json_schema", orjson.dumps(nested(40)).decode()), "#/items"),
        (Guide("json_schema", orjson.dumps(arr(items=INT, maxItems=10**6)).decode()), "#/maxItems: 1000000"),
        (Guide("json_schema", "{"), "#: no JSON at column 2"),
    ],
)  # fmt: skip
def test_a_guide_that_is_too_big_or_no_guide_is_refused(guide: Guide, fault: str) -> None:
    found = check(guide)
    assert found is not None
    assert found.startswith(fault)


def test_a_second_reader_refuses_what_the_first_lets_pass() -> None:
    fault = check(Guide("regex", r"a\<"))
    assert fault is not None
    assert "lookaround" in fault


KEYWORDS = st.sampled_from([
    "type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "enum", "const", "anyOf", "oneOf",
    "allOf", "$ref", "$defs", "pattern", "format", "minimum", "maximum", "additionalProperties", "maxProperties", "not",
])  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["object", "array", "integer", "string", "a", "#", "#/$defs/a", "time", "[a-z]+"])
JSON = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | WORDS, inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_accepted_or_refused_with_a_sentence(schema: Any) -> None:
    fault = fault_of(schema)
    assert fault is None or "; expected " in fault


@given(st.sampled_from(["regex", "ebnf_grammar", "json_schema"]), st.text(max_size=30))
def test_any_text_is_accepted_or_refused_with_a_sentence(kind: Any, text: str) -> None:
    fault = check(Guide(kind, text))
    assert fault is None or "; expected " in fault


@given(st.text(alphabet="ab\\^$.*+?()[]{}|,-1dx\n ", max_size=12))
def test_no_expression_breaks_the_reader(text: str) -> None:
    fault = check(Guide("regex", text))
    assert fault is None or "; expected " in fault


@given(st.text(alphabet='ab"\\^*+?()[]{}|,-1:= #\n', max_size=24))
def test_no_grammar_breaks_the_reader(text: str) -> None:
    fault = check(Guide("ebnf_grammar", "root ::= " + text))
    assert fault is None or "; expected " in fault
