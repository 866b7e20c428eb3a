"""Each request parameter is honoured, neutral, ignored or refused, and the table says which."""

from __future__ import annotations

import pytest

from trtb.runner import parameter_table, parameters
from trtb.runner.findings import Fault, Faults
from trtb.runner.request import Capabilities, SamplingParams


def check(body: dict, *, strict_params: bool = False) -> tuple[SamplingParams | None, list[Fault]]:
    faults = Faults()
    return parameters.check(body, faults, strict_params=strict_params), faults.items


def codes(body: dict) -> list[tuple[str, str]]:
    return [(fault.code, fault.severity) for fault in check(body)[1]]


def test_without_parameters_the_hosted_apis_defaults_hold():
    sampling, faults = check({})
    assert faults == []
    assert sampling == SamplingParams(
        max_tokens=None, temperature=1.0, top_p=1.0, top_k=None, min_tokens=0, presence_penalty=0.0,
        frequency_penalty=0.0, repetition_penalty=1.0, seed=None, stop=(),
    )  # fmt: skip


def test_every_honoured_parameter_arrives():
    sampling, faults = check(
        {
            "max_tokens": 9, "temperature": 0, "top_p": 0.5, "top_k": 40, "seed": -(2**63),
            "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.1, "stop": ["a", "b"],
        }
    )  # fmt: skip
    assert faults == []
    assert sampling == SamplingParams(9, 0.0, 0.5, 40, 0, -2.0, 2.0, 1.1, -(2**63), ("a", "b"))
    assert isinstance(sampling.temperature, float)


@pytest.mark.parametrize("name", sorted(parameter_table.BY_NAME.keys() - {"model", "messages"}))
def test_null_means_not_given(name):
    assert check({name: None}) == (SamplingParams(), [])


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_of_0_and_minus_1_is_off(off):
    assert check({"top_k": off})[0].top_k is None


def test_stop_takes_one_string():
    assert check({"stop": "END"})[0].stop == ("END",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0), ("max_tokens", "8"), ("max_tokens", 2.5), ("max_tokens", True),
        ("max_tokens", 8.0),
        ("max_tokens", 2**63), ("max_completion_tokens", -1), ("min_tokens", -1), ("temperature", -0.1),
        ("temperature", 2.1), ("temperature", True), ("temperature", [0]), ("top_p", 0), ("top_p", 1.1),
        ("top_k", -2), ("top_k", 1.5), ("seed", 1.18e21), ("seed", "1"), ("stop", ""), ("stop", [""]),
        ("stop", ["x"] * 17), ("stop", [1]), ("presence_penalty", -2.1), ("frequency_penalty", 2.1),
        ("repetition_penalty", 0), ("n", 0), ("n", "2"), ("n", True), ("n", 17), ("stream", True),
        ("stream", 1),
        ("logprobs", "yes"), ("top_logprobs", 2), ("response_format", "json"), ("response_format", {}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "s"}}), ("guided_json", 1),
        ("guided_json", "{"), ("guided_choice", []), ("guided_choice", [""]), ("guided_regex", 1),
        ("structured_outputs", []),
    ],
)  # fmt: skip
def test_a_malformed_value_is_an_invalid_request(name, value):
    sampling, faults = check({name: value})
    assert sampling is None
    assert [(fault.code, fault.severity) for fault in faults] == [("invalid_request", "error")]
    assert faults[0].path.startswith(f"body.{name}")
    assert faults[0].message.startswith(faults[0].path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 3), ("logit_bias", {"1": 5}), ("functions", [{}]), ("guided_regex", "(?=a)b"),
        ("guided_grammar", "a ::= b"), ("guided_json", {"not": {}}), ("audio", {}),
        ("modalities", ["text", "audio"]), ("prediction", {}), ("web_search_options", {}), ("min_p", 0.1),
        ("use_beam_search", True), ("echo", True), ("chat_template", "x"), ("ignore_eos", True),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused(name, value):
    assert codes({name: value}) == [("unsupported_parameter", "error")]


@pytest.mark.parametrize("parameter", [p for p in parameter_table.TABLE if p.neutral], ids=lambda p: p.name)
def test_a_neutral_value_passes_without_a_word(parameter):
    assert check({parameter.name: parameter.neutral[0]}) == (SamplingParams(), [])


@pytest.mark.parametrize(
    "parameter", [p for p in parameter_table.TABLE if p.status == "ignored"], ids=lambda p: p.name
)
def test_an_ignored_parameter_gets_a_warning(parameter):
    sampling, faults = check({parameter.name: "x"}, strict_params=True)
    assert sampling == SamplingParams()
    assert [(fault.path, fault.severity) for fault in faults] == [(f"body.{parameter.name}", "warning")]


def test_an_unknown_parameter_is_a_warning_and_strictly_an_error():
    assert codes({"temprature": 1}) == [("unsupported_parameter", "warning")]
    assert check({"temprature": 1}, strict_params=True)[0] is None


def test_min_tokens_stays_below_max_tokens():
    assert codes({"min_tokens": 9, "max_tokens": 8}) == [("invalid_request", "error")]
    assert codes({"min_tokens": 9, "max_tokens": 20, "max_completion_tokens": 8})[-1][1] == "error"
    assert codes({"min_tokens": 8, "max_tokens": 8}) == []


def test_min_tokens_is_refused_where_it_could_not_be_held():
    assert check({"min_tokens": 2})[0].min_tokens == 2
    for other in ({"stop": "a"}, {"guided_regex": "[ab]"}):
        assert codes({"min_tokens": 2} | other) == [("unsupported_parameter", "error")]


def test_a_body_of_countless_unknown_keys_gives_a_bounded_list():
    assert len(check({f"key-{i}": 1 for i in range(10_000)})[1]) == 20


def test_the_table_names_each_parameter_once():
    rows = list(parameter_table.as_rows())
    assert len({name for name, *_ in rows}) == len(rows)
    assert all(accepts for _, _, _, accepts, _ in rows)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"guided_json": {"type": "object"}}, "json_schema"),
        ({"guided_json": '{"type": "object"}'}, "json_schema"),
        ({"guided_regex": "[0-9]+"}, "regex"),
        ({"guided_choice": ["yes", 'no "x"']}, "ebnf_grammar"),
        ({"guided_grammar": 'root ::= "a"'}, "ebnf_grammar"),
        ({"structured_outputs": {"regex": "a"}}, "regex"),
    ],
)
def test_a_constraint_becomes_a_guide(body, kind):
    sampling, faults = check(body)
    assert faults == []
    assert sampling.guide.kind == kind


def test_one_constraint_at_most():
    assert codes({"guided_regex": "a", "guided_json": {"type": "object"}}) == [("invalid_request", "error")]


def test_an_engine_that_cannot_be_constrained_refuses_a_constraint():
    faults = Faults()
    body = {"guided_regex": "a"}
    assert (
        parameters.check(body, faults, strict_params=False, capabilities=Capabilities(guided=False)) is None
    )
    assert [fault.code for fault in faults.items] == ["unsupported_parameter"]


@pytest.mark.parametrize(("value", "wanted"), [(True, True), (False, False), (None, False)])
def test_chats_ask_for_log_probabilities_with_a_boolean(value, wanted):
    assert check({"logprobs": value})[0].log_probs is wanted


def test_completions_ask_for_log_probabilities_with_a_number_and_get_no_alternatives():
    faults = Faults()
    body = {"logprobs": 0}
    assert parameters.check(body, faults, strict_params=False, endpoint="completions").log_probs
    assert parameters.check({"logprobs": 1}, faults, strict_params=False, endpoint="completions") is None
    assert [fault.code for fault in faults.items] == ["unsupported_parameter"]


def test_a_parameter_of_the_other_endpoint_is_unknown():
    faults = Faults()
    parameters.check({"messages": []}, faults, strict_params=False, endpoint="completions")
    assert [(fault.path, fault.severity) for fault in faults.items] == [("body.messages", "warning")]
