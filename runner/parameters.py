"""Check the parameters of a request body, and turn those that are honoured into sampling parameters.

null means that a parameter is not given. Types are strict: "8" is not 8, 2.5 and true are no integers.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from trtb.runner.findings import (
    INVALID_REQUEST,
    Fault,
    Faults,
    invalid,
    shown,
    shown_key,
    unsupported,
    warning,
)
from trtb.runner.guiding import guide_parameters
from trtb.runner.guiding.guides import Guide
from trtb.runner.parameter_table import BY_NAME, INT32_MAX, INT64_MAX, Endpoint, Parameter
from trtb.runner.request import Capabilities, SamplingParams

MAX_SEQUENCES = 16
DEFAULT_CAPABILITIES: Final = Capabilities()

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
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None


HONOURED: Final = tuple(_Honoured.__annotations__)

# the public wrapper around this method costs as much as the check itself
_validate = TypeAdapter(_Honoured).validator.validate_python


def check(
    body: dict[str, Any],
    faults: Faults,
    *,
    strict_params: bool,
    endpoint: Endpoint = "chat",
    capabilities: Capabilities = DEFAULT_CAPABILITIES,
) -> SamplingParams | None:
    """Return the sampling parameters of a request body, or None where its faults forbid it."""
    num_errors = faults.num_errors
    values: dict[str, Any] = {}
    try:
        values = {name: value for name, value in _validate(body).items() if value is not None}
    except ValidationError as exc:
        names = dict.fromkeys(str(error["loc"][0]) for error in exc.errors(include_url=False))
        for name in names:
            faults.add(invalid(f"body.{name}", shown(body[name]), BY_NAME[name].accepts))
    if endpoint == "completions":
        values.pop("max_completion_tokens", None)
    log_probs = _check_logprobs(body, endpoint, faults)
    guide = guide_parameters.check(body, faults, can_guide=capabilities.guided)
    _check_together(values, guide, faults)
    for name, value in body.items():
        parameter = BY_NAME.get(name)
        if parameter and parameter.only not in (None, endpoint):
            parameter = None
        if value is None or (parameter and parameter.status == "honoured"):
            continue
        fault = _unhonoured(parameter, body, value) if parameter else _unknown(name, endpoint, strict_params)
        if fault:
            faults.add(fault)
    if faults.num_errors > num_errors:
        return None
    return to_sampling(values, log_probs=log_probs, guide=guide)


def to_sampling(
    values: dict[str, Any], *, log_probs: bool = False, guide: Guide | None = None
) -> SamplingParams:
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
    return SamplingParams(**values, log_probs=log_probs, guide=guide)


def _check_together(values: dict[str, Any], guide: Guide | None, faults: Faults) -> None:
    if "max_tokens" in values and "max_completion_tokens" in values:
        faults.add(
            warning("body.max_tokens", "body.max_tokens: not used; max_completion_tokens is given too")
        )
    limit = values.get("max_completion_tokens", values.get("max_tokens", INT64_MAX))
    if values.get("min_tokens") and (guide or "stop" in values):
        where = "a constraint" if guide else "stop strings"
        faults.add(unsupported("body.min_tokens", f"{values['min_tokens']} beside {where}", "0 there"))
    if values.get("min_tokens", 0) > limit:
        faults.add(invalid("body.min_tokens", shown(values["min_tokens"]), f"at most max_tokens, {limit}"))


def _check_logprobs(body: dict[str, Any], endpoint: Endpoint, faults: Faults) -> bool:
    """Return whether log probabilities are wanted; a boolean in chats, a number of alternatives elsewhere."""
    value = body.get("logprobs")
    if value is None:
        return False
    path = "body.logprobs"
    if endpoint == "chat":
        if not isinstance(value, bool):
            faults.add(invalid(path, shown(value), "a boolean"))
        return value is True
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        faults.add(invalid(path, shown(value), "an integer of at least 0"))
    elif value > 0:
        faults.add(unsupported(path, shown(value), "0", BY_NAME["top_logprobs"].note))
    return True


def _unhonoured(parameter: Parameter, body: dict[str, Any], value: Any) -> Fault | None:
    path = f"body.{parameter.name}"
    if parameter.status == "ignored":
        return warning(path, f"{path}: ignored; {parameter.note}")
    if any(_is_same(value, neutral) for neutral in parameter.neutral):
        return None
    if parameter.name == "add_generation_prompt" and value is False and body.get("continue_final_message"):
        return None  # the two belong together
    if parameter.kinds and type(value) not in parameter.kinds:
        return invalid(path, shown(value), parameter.accepts)
    fault = _malformed(parameter.name, body, value)
    return fault or unsupported(path, shown(value), parameter.accepts, parameter.note)


def _malformed(name: str, body: dict[str, Any], value: Any) -> Fault | None:
    """Return the fault of a value that no server would take, whatever it supports."""
    path = f"body.{name}"
    if name == "stream":
        return Fault(path, INVALID_REQUEST, f"{path}: true; stream must be false in a batch file")
    if name == "best_of" and value < 1:
        return invalid(path, shown(value), "an integer of at least 1")
    if name == "top_logprobs" and body.get("logprobs") is not True:
        return invalid(path, f"{shown(value)} without logprobs", "logprobs: true beside it")
    return None


def _unknown(name: str, endpoint: Endpoint, strict_params: bool) -> Fault:
    path = f"body.{shown_key(name)}"
    if strict_params:
        return unsupported(path, "unknown parameter", f"one of {endpoint}'s", "check its spelling")
    return warning(path, f"{path}: unknown, ignored", "check its spelling; --strict-params refuses it")


def _is_same(value: Any, neutral: Any) -> bool:
    # in Python True == 1, in JSON not
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
