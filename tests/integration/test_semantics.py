"""Every line a user may write, on the real engine: honoured as the hosted APIs do it, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import request_lines
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from request_lines import chat, completion

from trtb.build.store import EngineStore
from trtb.runner.options import RunOptions
from trtb.runner.run import run_batch
from trtb.runner.validate import validate_file

pytestmark = pytest.mark.triton

Run = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def run(shared_server, tmp_path: Path) -> Run:
    """Run lines on the shared server; returns the output records by custom_id."""
    stored = EngineStore(shared_server.home).resolve()
    counter = iter(range(1000))

    def run_lines(lines: list[dict[str, Any]], **options: Any) -> dict[str, dict[str, Any]]:
        number = next(counter)
        path = request_lines.write(tmp_path / f"in-{number}.jsonl", lines)
        output = tmp_path / f"out-{number}.jsonl"
        values = {"on_invalid": "fail", "endpoints": (shared_server.endpoint,), **options}
        run_batch(RunOptions(path, output, stored.path, stored.manifest, **values))
        records = request_lines.read(output)
        assert [record["custom_id"] for record in records] == [line.get("custom_id") for line in lines]
        return {record["custom_id"]: record for record in records}

    return run_lines


def body_of(record: dict[str, Any]) -> dict[str, Any]:
    assert record["error"] is None
    return record["response"]["body"]


def texts(record: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in body_of(record)["choices"]]


def code_of(record: dict[str, Any]) -> str | None:
    return record["error"] and record["error"]["code"]


def test_n_gives_as_many_choices_with_their_indices_and_the_usage_of_all(run):
    records = run(
        [
            chat("sampled", n=3, temperature=1.0, seed=1),
            chat("greedy", n=2),
            chat("stopped", n=3, temperature=1.0, seed=1, stop=["e", "o"], max_tokens=12),
            chat("guided", n=2, temperature=1.0, guided_regex="[ab]{3}"),
            completion("prompts", prompt=["a b", "c d"], n=2, temperature=1.0),
        ]
    )
    for custom_id, num_choices in (("sampled", 3), ("greedy", 2), ("guided", 2), ("prompts", 4)):
        body = body_of(records[custom_id])
        assert [choice["index"] for choice in body["choices"]] == list(range(num_choices))
        assert body["usage"]["completion_tokens"] >= num_choices
    assert len(set(texts(records["sampled"]))) == 3
    assert len(set(texts(records["greedy"]))) == 1
    assert all("e" not in text and "o" not in text for text in texts(records["stopped"]))
    assert all(set(text) <= set("ab") for text in texts(records["guided"]))


def test_log_probabilities_are_those_of_the_answers_tokens(run):
    records = run([chat("chat", logprobs=True), completion("text", prompt="The sky is", logprobs=0)])
    choice = body_of(records["chat"])["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == choice["message"]["content"]
    assert all(token["logprob"] <= 0 for token in tokens)
    assert len(tokens) == body_of(records["chat"])["usage"]["completion_tokens"]
    choice = body_of(records["text"])["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"][0] == 0


def test_constrained_answers_obey(run):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    }
    records = run(
        [
            *(
                chat(
                    f"schema-{seed}",
                    response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
                    max_tokens=40,
                    temperature=1.0,
                    seed=seed,
                )
                for seed in range(6)
            ),
            chat("object", response_format={"type": "json_object"}, max_tokens=8),
            chat("choice", guided_choice=["yes", 'no "x"']),
            chat("regex", guided_regex="[0-9]{2}-[a-z]{2}", max_tokens=12),
            chat("grammar", guided_grammar='root ::= "a" "b"'),
            chat("neighbour"),
        ]
    )
    choices = [body_of(records[f"schema-{seed}"])["choices"][0] for seed in range(6)]
    whole = [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]
    assert whole  # the others are cut by max_tokens: the grammar allows white space without end
    for answer in map(json.loads, whole):
        assert isinstance(answer["ok"], bool)
        assert answer["kind"] in ("a", "b")
        assert answer.keys() == {"ok", "kind"}
    assert texts(records["object"])[0].startswith("{")
    assert body_of(records["object"])["choices"][0]["finish_reason"] == "length"
    assert texts(records["choice"])[0] in ("yes", 'no "x"')
    assert len(texts(records["regex"])[0]) == 5
    assert texts(records["grammar"]) == ["ab"]
    assert texts(records["neighbour"]) == texts(run([chat("neighbour")])["neighbour"])


def test_stop_strings_cut_wherever_tokens_end_and_are_no_part_of_the_answer(run):
    whole = texts(run([chat("whole", max_tokens=12)])["whole"])[0]
    stops = {f"{start}-{size}": whole[start : start + size] for start in (1, 4, 7) for size in (1, 3, 6)}
    records = run([chat(name, max_tokens=12, stop=[stop, "\x00"]) for name, stop in stops.items()])
    for name, stop in stops.items():
        assert texts(records[name]) == [whole[: whole.index(stop)]]
        assert body_of(records[name])["choices"][0]["finish_reason"] == "stop"


def test_completions_are_texts_without_a_chat_template(run):
    records = run(
        [
            completion("text", prompt="The sky is"),
            completion("many", prompt=["The sky is", "One, two,"]),
            completion("ids", prompt=[504, 6632, 314]),
            completion("unknown-id", prompt=[49152]),
        ]
    )
    body = body_of(records["text"])
    assert body["object"] == "text_completion"
    assert body["usage"]["prompt_tokens"] == 3
    many = body_of(records["many"])["choices"]
    assert [choice["index"] for choice in many] == [0, 1]
    assert many[0]["text"] == body["choices"][0]["text"]
    assert body_of(records["ids"])["usage"]["prompt_tokens"] == 3
    assert code_of(records["unknown-id"]) == "invalid_request"


def test_an_assistants_last_message_is_gone_on_with(run):
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2,"}]
    records = run([chat("on", messages=messages, continue_final_message=True)])
    assert texts(records["on"])[0].startswith(" 3")


def test_equal_seeds_give_equal_answers_also_in_company(run):
    def sampled(custom_id: str, seed: int) -> dict[str, Any]:
        return chat(custom_id, temperature=1.0, seed=seed, max_tokens=8)

    alone = texts(run([sampled("alone", 7)])["alone"])
    records = run([sampled("same", 7), *(sampled(f"other-{i}", i) for i in range(8, 16))])
    assert texts(records["same"]) == alone
    assert len({texts(record)[0] for record in records.values()}) > 5


def test_unseeded_requests_differ_by_line_and_a_repeated_run_agrees(run):
    lines = [chat(f"u-{i}", temperature=1.0, max_tokens=8) for i in range(4)]
    first, second = run(lines), run(lines)
    assert len({texts(record)[0] for record in first.values()}) > 1
    assert [texts(first[key]) for key in first] == [texts(second[key]) for key in first]


def test_the_openai_package_reads_every_answer(run):
    records = run(
        [
            chat("plain"),
            chat("several", n=2, temperature=1.0),
            chat("log-probs", logprobs=True),
            chat("json", response_format={"type": "json_object"}),
            completion("text", prompt="a", logprobs=0),
        ]
    )
    for custom_id, record in records.items():
        kind = Completion if custom_id == "text" else ChatCompletion
        body = body_of(record)
        parsed = kind.model_validate(body, strict=True)
        # what the package knows of it is all there is: nothing misspelt, nothing of another shape
        assert parsed.model_extra in (None, {})
        assert parsed.usage.total_tokens == body["usage"]["total_tokens"]


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats(-1, 3) | st.text(max_size=3) | st.just([])
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(0, 3) | VALUES,
        "temperature": st.sampled_from([0, 0.5, 2]) | VALUES,
        "top_p": st.sampled_from([0.5, 1]) | VALUES,
        "n": st.integers(0, 2),
        "stop": st.sampled_from(["a", ["b", "c"]]) | VALUES,
        "seed": VALUES,
        "logprobs": VALUES,
        "guided_regex": st.sampled_from(["[ab]+", "(", "a|b", "(?=x)"]) | VALUES,
        "guided_json": st.sampled_from([{"type": "object"}, {"type": "sum"}, {}]) | VALUES,
        "continue_final_message": VALUES,
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"])},
                optional={"content": st.text(max_size=6) | VALUES},
            ),
            max_size=2,
        ),
        "prompt": st.text(max_size=5) | st.lists(st.integers(0, 50_000), max_size=3) | VALUES,
        "unknown": VALUES,
    },
)
URLS = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/chat/completions", "/v1/x"])


# not shrunk: each example is a whole run
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(st.lists(st.tuples(URLS, BODIES), min_size=15, max_size=25))
def test_whatever_lines_hold_validation_and_run_agree_and_no_line_is_lost(shared_server, tmp_path, drawn):
    stored = EngineStore(shared_server.home).resolve()
    lines = []
    for number, (url, body) in enumerate(drawn):
        base = {"model": request_lines.MODEL, "max_tokens": 2}
        if url.endswith("chat/completions"):
            base["messages"] = [{"role": "user", "content": "a"}]
        else:
            base["prompt"] = "a"
        lines.append({"custom_id": f"f-{number}", "method": "POST", "url": url, "body": base | body})
    path = tmp_path / "fuzz.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    output = tmp_path / "fuzz.out.jsonl"
    options = RunOptions(
        path,
        output,
        stored.path,
        stored.manifest,
        endpoints=(shared_server.endpoint,),
        on_invalid="fail",
        overwrite=True,
    )
    checked = validate_file(
        path,
        model_names=options.model_names,
        strict_params=False,
        capabilities=options.capabilities(),
    )
    report = run_batch(options)
    records = request_lines.read(output)
    assert [record["custom_id"] for record in records] == [line["custom_id"] for line in lines]
    assert report.total == report.completed + report.failed == len(lines)
    refused_by_tokens = {"context_length_exceeded", "invalid_request"}  # seen only when rendered
    for number, record in enumerate(records, start=1):
        if number in checked.invalid_lines:
            assert record["response"]["status_code"] == 400
        elif record["error"] is not None:
            assert record["error"]["code"] in refused_by_tokens, record["error"]
