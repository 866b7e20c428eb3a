# ruff: noqa: E501
"""Whatever `check` accepts, the real engine compiles, and its answers obey.

The pipeline lives in a child process: a guide that it cannot compile would end it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from trtb.build.store import EngineStore
from trtb.runner.guiding.guides import Guide, GuideKind, check

pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]

ENGINE = "smollm2-135m-instruct-int8_wo"
EOS = 2

CHILD = """
import json, sys
sys.modules["openvino_telemetry"] = None
import openvino_genai as genai
scheduler = genai.SchedulerConfig()
scheduler.num_kv_blocks = 200
precision = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", precision)
tokenizer = pipeline.get_tokenizer()
fields = {"json_schema": "json_schema", "regex": "regex", "ebnf_grammar": "grammar"}
last_id = 0
for line in sys.stdin:
    job, handles = json.loads(line), []
    for prompt, temperature in job["samples"]:
        config = genai.GenerationConfig(max_new_tokens=job["max_tokens"], do_sample=True, rng_seed=len(handles))
        config.temperature = temperature
        config.set_eos_token_id(2)
        config.stop_token_ids = {2}
        guide = genai.StructuredOutputConfig(**{fields[job["kind"]]: job["text"]})
        config.structured_output_config = guide
        last_id += 1
        ids = tokenizer.encode(prompt, add_special_tokens=False).input_ids
        handles.append(pipeline.add_request(last_id, ids, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    answers = []
    for handle in handles:
        tokens = []
        while handle.can_read():
            for output in handle.read().values():
                tokens += output.generated_ids
        done = tokens[-1:] == [2]
        answers.append([tokenizer.decode(tokens[:-1] if done else tokens, skip_special_tokens=False), done])
    print("ANSWERS " + json.dumps(answers), flush=True)
"""


class GuidedEngine:
    """The engine in a process of its own, started again when a guide has ended it."""

    def __init__(self, engine: Path, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def answers(
        self, guide: Guide, samples: list[tuple[str, float]], max_tokens: int
    ) -> list[tuple[str, bool]]:
        """Return each sample's answer and whether it came to its end."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(self.engine)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self.folder,
            )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        job = {"kind": guide.kind, "text": guide.text, "samples": samples, "max_tokens": max_tokens}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("ANSWERS "):
                return [(text, done) for text, done in json.loads(line[8:])]
        self.stop()
        pytest.fail(f"the engine did not survive {guide}")

    def stop(self) -> None:
        if self.process is not None:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def engine(engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuidedEngine]:
    path = EngineStore(engine_home).resolve(ENGINE).path
    guided = GuidedEngine(path, tmp_path_factory.mktemp("guides"))
    yield guided
    guided.stop()


few = settings(
    max_examples=32, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

LITERALS = st.sampled_from(["a", "Z", "7", " ", "é", r"\.", r"\/", "-", '"', "_", r"\-", r"\x41", "😀"])
CLASSES = st.sampled_from([
    r"\d", r"\w", r"\s", r"\S", "[a-f]", "[^,]", r"[\w.+-]", r"[^\d\s]", "[a^]", r"[\]\\]", "[-x]", r'[^"\\\x00-\x1f]',
])  # fmt: skip
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "*?", "{2}", "{1,3}", "{2,}", "{0,9}?"])


def regexes() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        many = st.lists(inner, min_size=1, max_size=3)
        return many.map("".join) | st.tuples(many, QUANTIFIERS).map(lambda p: f"({'|'.join(p[0])}){p[1]}")

    plain = st.tuples(LITERALS | CLASSES, QUANTIFIERS).map("".join)
    odd = st.sampled_from([".", "^", "$", r"\b", "(?i)", "a|", "[", "{2}", "()", r"[\^a]", r"\0"])
    return st.recursive(plain | plain | plain | odd, larger, max_leaves=6)


def grammars() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(
        [
            '"a"',
            '"é\\n"',
            "[a-z]",
            "[^\\n]",
            "[0-9_-]",
            '"{\\"k\\": "',
            '"b" root',
            '""',
            "[\\^a]",
            "(",
            "'a'",
        ]
    )
    quantifiers = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}"])

    def body(*names: str) -> st.SearchStrategy[str]:
        element = st.tuples(atoms | atoms | st.sampled_from(["[x-z]", *names]), quantifiers).map("".join)
        sequence = st.lists(element, min_size=1, max_size=3).map(" ".join)
        choice = st.lists(sequence, min_size=1, max_size=3).map(" | ".join)
        return st.tuples(choice, choice).map(lambda two: f"({two[0]}) | {two[1]}") | choice

    return st.tuples(body("x", "y", "my-rule"), body("x", "y"), body("my-rule"), body()).map(
        lambda b: f"root ::= {b[0]} # first\nx ::= {b[1]}\ny ::=\n  {b[2]}\nmy-rule ::= {b[3]}\n"
    )


def schemas() -> st.SearchStrategy[Any]:
    small = st.integers(0, 3)
    leaves = st.sampled_from([
        {"type": "integer"}, {"type": "integer", "minimum": 0}, {"type": "integer", "minimum": -5, "maximum": 17},
        {"type": "number"}, {"type": "number", "minimum": 1}, {"type": "boolean"}, {"type": "null"}, {},
        {"type": "string"}, {"type": "string", "format": "duration"}, {"enum": ["red", 1.5, None]}, {"const": {"a": 'q"'}},
        {"type": ["string", "null"]}, {"type": "string", "minLength": 2}, {"type": "integer", "multipleOf": 3},
        {"$ref": "#/$defs/d"}, False, {"type": "foo"},
    ])  # fmt: skip
    patterns = regexes().map(lambda text: {"type": "string", "pattern": text})

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        names = st.sampled_from(["a", "b c", "é", "$x", 'q"'])
        objects = st.dictionaries(names, inner, max_size=3).map(lambda p: {"type": "object", "properties": p})
        closed = objects.map(
            lambda o: o | {"required": list(o["properties"])[:1], "additionalProperties": False}
        )
        maps = inner.map(lambda s: {"type": "object", "additionalProperties": s})
        lists = st.tuples(inner, small, small).map(
            lambda p: {"type": "array", "items": p[0], "minItems": p[1], "maxItems": p[1] + p[2]}
        )
        tuples = st.lists(inner, min_size=1, max_size=2).map(lambda p: {"type": "array", "prefixItems": p})
        choices = st.tuples(
            st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=2)
        )
        return objects | closed | maps | lists | tuples | choices.map(lambda p: {p[0]: p[1]})

    definition = {"type": "object", "properties": {"n": {"$ref": "#/$defs/d"}}, "additionalProperties": False}
    root = st.recursive(leaves | patterns, larger, max_leaves=5)
    return root.map(lambda s: s | {"$defs": {"d": definition}} if isinstance(s, dict) else s)


def check_in_engine(engine: GuidedEngine, kind: GuideKind, text: str) -> None:
    guide = Guide(kind, text)
    assume(check(guide) is None)
    answers = engine.answers(guide, [("Write something.", 1.5), ('Repeat: {"a": "x\t\\"", "n": 1}', 1.0)], 12)
    for answer, done in answers:
        if done:
            assert obeys(guide, answer), (guide, answer)


def obeys(guide: Guide, answer: str) -> bool:
    if guide.kind == "regex":
        return re.fullmatch(guide.text, answer) is not None
    if guide.kind == "json_schema":
        return jsonschema.Draft202012Validator(json.loads(guide.text)).is_valid(json.loads(answer))
    return True


@few
@given(regexes())
def test_the_engine_compiles_every_accepted_expression(engine: GuidedEngine, text: str) -> None:
    check_in_engine(engine, "regex", text)


@few
@given(grammars())
def test_the_engine_compiles_every_accepted_grammar(engine: GuidedEngine, text: str) -> None:
    check_in_engine(engine, "ebnf_grammar", text)


@few
@given(schemas())
def test_the_engine_compiles_every_accepted_schema(engine: GuidedEngine, schema: Any) -> None:
    check_in_engine(engine, "json_schema", json.dumps(schema, ensure_ascii=False))


PUSHED = [
    (Guide("json_schema", '{"type":"object","properties":{"name":{"type":"string","pattern":"^[A-Z][a-z]{1,9}$"},'
           '"age":{"type":"integer","minimum":0,"maximum":99}},"required":["name","age"]}'),
     '{"name": "bob", "age": 120, "town": 1}'),
    (Guide("json_schema", '{"type":"array","items":{"enum":["red","green"]},"minItems":1,"maxItems":2}'),
     '["blue", "red", "red", "red"]'),
    (Guide("regex", r"(\d{3}-)?\d{3}-\d{4}"), "call 12-34"),
    (Guide("ebnf_grammar", 'root ::= "yes" | "no"'), "maybe"),
]  # fmt: skip


@pytest.mark.parametrize(("guide", "push"), PUSHED, ids=["object", "list", "expression", "grammar"])
def test_answers_obey_where_the_prompt_asks_for_something_else(
    engine: GuidedEngine, guide: Guide, push: str
) -> None:
    assert check(guide) is None
    answers = engine.answers(guide, [(f"Repeat exactly: {push}\n", t) for t in (0.2, 0.7, 1.0, 1.5, 3.0)], 40)
    ended = [answer for answer, done in answers if done]
    assert ended
    for answer in ended:
        assert answer in ("yes", "no") if guide.kind == "ebnf_grammar" else obeys(guide, answer), answer
