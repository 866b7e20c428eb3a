"""Every request parameter we know, and what happens to it: the one table that code and README read.

Four answers, never silence: *honoured*; *neutral*, accepted only at a value that changes nothing; *ignored*
with a warning, because no answer depends on it; *refused*, because ignoring it would change the answer.
null means that the parameter is not given. Types are strict: "8" is not 8, 2.5 and true are no integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from trtb.runner.findings import (
    INVALID_REQUEST,
    Fault,
    Faults,
    invalid,
    kind_of,
    shown,
    shown_key,
    unsupported,
    warning,
)
from trtb.runner.request import SamplingParams

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Status = Literal["honoured", "neutral", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of `body`: what values it takes here, and what becomes of them."""

    name: str
    status: Status
    accepts: str  # completes "expected …"
    note: str = ""
    neutral: tuple[Any, ...] = ()
    kinds: tuple[type, ...] = ()  # JSON types of a well-formed value, where a wrong one is worth its own word


def _neutral(name: str, value: Any, *kinds: type, accepts: str = "", note: str = "") -> Parameter:
    return Parameter(name, "neutral", accepts or shown(value), note, (value,), kinds)


def _ignored(name: str, note: str) -> Parameter:
    return Parameter(name, "ignored", "anything", note)


def _refused(name: str, note: str = "") -> Parameter:
    return Parameter(name, "refused", "nothing: leave it out", note)


_NUMBER = (int, float)
_TOOLS = "this engine calls no tools"
_TOKENS = "tokens are not returned, only text"
_GUIDED = "answers are not constrained to a grammar"
_CHAT = "the checkpoint's own chat template is used as it is"
_OPENAI = "a setting of the hosted API"

TABLE: Final[tuple[Parameter, ...]] = (
    Parameter("model", "honoured", "the engine's name or one of its aliases"),
    Parameter("messages", "honoured", "a list of messages, at least one", "text only"),
    Parameter("max_tokens", "honoured", "an integer of at least 1", "max_completion_tokens wins over it"),
    Parameter("max_completion_tokens", "honoured", "an integer of at least 1"),
    Parameter("min_tokens", "honoured", "an integer from 0 to max_tokens", "default 0"),
    Parameter("temperature", "honoured", "a number from 0 to 2", "default 1; 0 is greedy"),
    Parameter("top_p", "honoured", "a number over 0 and at most 1", "default 1"),
    Parameter("top_k", "honoured", "an integer of at least -1", "0 and -1 turn it off; default off"),
    Parameter("seed", "honoured", "an integer of 64 bits"),
    Parameter("stop", "honoured", "a string or a list of at most 16, none empty", "not part of the answer"),
    Parameter("presence_penalty", "honoured", "a number from -2 to 2", "default 0"),
    Parameter("frequency_penalty", "honoured", "a number from -2 to 2", "default 0"),
    Parameter("repetition_penalty", "honoured", "a number over 0", "default 1"),
    _neutral("n", 1, int, note="one answer a request; write the request n times, each with its custom_id"),
    _neutral("best_of", 1, int),
    _neutral("stream", False, bool, note="every line gets one whole answer"),
    _neutral("logprobs", False, bool, note=_TOKENS),
    _neutral("top_logprobs", 0, int, note=_TOKENS),
    _neutral("prompt_logprobs", 0, int, bool, note=_TOKENS),
    _neutral("logit_bias", {}, dict, accepts="{}", note="the engine takes no bias for each token"),
    _neutral("tools", [], list, accepts="[]", note=_TOOLS),
    _neutral("functions", [], list, accepts="[]", note=_TOOLS),
    _neutral("tool_choice", "none", str, dict, note=_TOOLS),
    _neutral("function_call", "none", str, dict, note=_TOOLS),
    _neutral("response_format", {"type": "text"}, dict, accepts='{"type": "text"}', note=_GUIDED),
    _neutral("modalities", ["text"], list, accepts='["text"]', note="this engine writes text only"),
    _neutral("verbosity", "medium", str),
    _neutral("reasoning_effort", "none", str, note="the engine has no such setting"),
    _neutral("min_p", 0, *_NUMBER),
    _neutral("length_penalty", 1, *_NUMBER),
    _neutral("use_beam_search", False, bool),
    _neutral("echo", False, bool, note="the prompt is not repeated"),
    _neutral("ignore_eos", False, bool),
    _neutral("skip_special_tokens", True, bool),
    _neutral("spaces_between_special_tokens", True, bool),
    _neutral("include_stop_str_in_output", False, bool),
    _neutral("return_tokens_as_token_ids", False, bool, note=_TOKENS),
    _neutral("return_token_ids", False, bool, note=_TOKENS),
    _neutral("stop_token_ids", [], list, accepts="[]", note="use stop, which takes strings"),
    _neutral("bad_words", [], list, accepts="[]"),
    _neutral("add_generation_prompt", True, bool, note=_CHAT),
    _neutral("continue_final_message", False, bool, note=_CHAT),
    _neutral("add_special_tokens", False, bool, note=_CHAT),
    _refused("chat_template", _CHAT),
    _refused("chat_template_kwargs", _CHAT),
    _refused("documents", _CHAT),
    _refused("truncate_prompt_tokens", "a prompt is never cut"),
    _refused("allowed_token_ids"),
    _refused("audio", "this engine writes text only"),
    _refused("prediction"),
    _refused("web_search_options", "nothing is fetched during a run"),
    _refused("mm_processor_kwargs", "this engine takes text only"),
    _refused("logits_processors", "no code of a request is run"),
    _refused("guided_json", _GUIDED),
    _refused("guided_regex", _GUIDED),
    _refused("guided_choice", _GUIDED),
    _refused("guided_grammar", _GUIDED),
    _refused("structural_tag", _GUIDED),
    _refused("structured_outputs", _GUIDED),
    _ignored("user", "names the end user to a hosted API"),
    _ignored("metadata", "kept with the answer by a hosted API; use custom_id"),
    _ignored("store", _OPENAI),
    _ignored("service_tier", _OPENAI),
    _ignored("safety_identifier", _OPENAI),
    _ignored("prompt_cache_key", "shared prefixes are found without it"),
    _ignored("prompt_cache_retention", "shared prefixes are found without it"),
    _ignored("stream_options", "usage is always reported"),
    _ignored("parallel_tool_calls", _TOOLS),
    _ignored("guided_decoding_backend", _GUIDED),
    _ignored("guided_whitespace_pattern", _GUIDED),
    _ignored("priority", "the order of a run is chosen with --order"),
    _ignored("request_id", "request ids are the runner's own"),
    _ignored("cache_salt", "a run shares its cache with nobody else"),
)
BY_NAME: Final = {parameter.name: parameter for parameter in TABLE}

_Penalty = Annotated[float, Field(ge=-2, le=2)]
_TokenLimit = Annotated[int, Field(ge=1, le=INT64_MAX)]
_StopText = Annotated[str, Field(min_length=1)]


class _Honoured(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True, extra="ignore")  # type: ignore[misc]

    max_tokens: _TokenLimit | None
    max_completion_tokens: _TokenLimit | None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None
    temperature: Annotated[float, Field(ge=0, le=2)] | None
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None
    stop: _StopText | Annotated[list[_StopText], Field(max_length=16)] | None
    presence_penalty: _Penalty | None
    frequency_penalty: _Penalty | None
    repetition_penalty: Annotated[float, Field(gt=0)] | None


HONOURED: Final = tuple(_Honoured.__annotations__)

# the public wrapper around this method costs as much as the check itself
_validate = TypeAdapter(_Honoured).validator.validate_python


def check(body: dict[str, Any], faults: Faults, *, strict_params: bool) -> SamplingParams | None:
    """Return the sampling parameters of a request body, or None where its faults forbid it."""
    num_errors = faults.num_errors
    values: dict[str, Any] = {}
    try:
        values = {name: value for name, value in _validate(body).items() if value is not None}
    except ValidationError as exc:
        names = dict.fromkeys(str(error["loc"][0]) for error in exc.errors(include_url=False))
        for name in names:
            faults.add(invalid(f"body.{name}", shown(body[name]), BY_NAME[name].accepts))
    _check_together(values, faults)
    for name, value in body.items():
        parameter = BY_NAME.get(name)
        if value is None or (parameter and parameter.status == "honoured"):
            continue
        fault = _unhonoured(parameter, body, value) if parameter else _unknown(name, strict_params)
        if fault:
            faults.add(fault)
    return to_sampling(values) if faults.num_errors == num_errors else None


def as_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, status, accepted values and note of each parameter: the table of the README."""
    for parameter in TABLE:
        yield parameter.name, parameter.status, parameter.accepts, parameter.note


def to_sampling(values: dict[str, Any]) -> SamplingParams:
    """Return the sampling parameters of checked values, none of them None."""
    values = dict(values)
    limit = values.pop("max_completion_tokens", None)
    if limit is not None:
        values["max_tokens"] = limit
    if values.get("top_k", 1) < 1:
        del values["top_k"]
    if "stop" in values:
        stop = values["stop"]
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return SamplingParams(**values)


def _check_together(values: dict[str, Any], faults: Faults) -> None:
    if "max_tokens" in values and "max_completion_tokens" in values:
        faults.add(
            warning("body.max_tokens", "body.max_tokens: not used; max_completion_tokens is given too")
        )
    limit = values.get("max_completion_tokens", values.get("max_tokens", INT64_MAX))
    if values.get("min_tokens", 0) > limit:
        faults.add(invalid("body.min_tokens", shown(values["min_tokens"]), f"at most max_tokens, {limit}"))


def _unhonoured(parameter: Parameter, body: dict[str, Any], value: Any) -> Fault | None:
    path = f"body.{parameter.name}"
    if parameter.status == "ignored":
        return warning(path, f"{path}: ignored; {parameter.note}")
    if any(_is_same(value, neutral) for neutral in parameter.neutral):
        return None
    if parameter.kinds and type(value) not in parameter.kinds:
        return invalid(path, shown(value), parameter.accepts)
    fault = _malformed(parameter.name, body, value)
    return fault or unsupported(path, shown(value), parameter.accepts, parameter.note)


def _malformed(name: str, body: dict[str, Any], value: Any) -> Fault | None:
    """Return the fault of a value that no server would take, whatever it supports."""
    path = f"body.{name}"
    if name == "stream":
        return Fault(path, INVALID_REQUEST, f"{path}: true; stream must be false in a batch file")
    if name in {"n", "best_of"} and value < 1:
        return invalid(path, shown(value), "an integer of at least 1")
    if name == "top_logprobs" and body.get("logprobs") is not True:
        return invalid(path, f"{shown(value)} without logprobs", "logprobs: true beside it")
    if name == "response_format":
        return _malformed_format(path, value)
    return None


def _malformed_format(path: str, value: dict[str, Any]) -> Fault | None:
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        return invalid(f"{path}.type", shown(kind), "text, json_object or json_schema")
    schema = value.get("json_schema")
    if kind == "json_schema" and not isinstance(schema, dict):
        return invalid(f"{path}.json_schema", kind_of(schema), "an object with name and schema")
    return None


def _unknown(name: str, strict_params: bool) -> Fault:
    path = f"body.{shown_key(name)}"
    if strict_params:
        return unsupported(path, "unknown parameter", "one of chat completions", "check its spelling")
    return warning(path, f"{path}: unknown, ignored", "check its spelling; --strict-params refuses it")


def _is_same(value: Any, neutral: Any) -> bool:
    # in Python True == 1, in JSON not
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
