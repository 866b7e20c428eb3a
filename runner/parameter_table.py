"""Every request parameter we know, and what happens to it: the one table that code and README read.

Four answers, never silence: *honoured*; *neutral*, accepted only at a value that changes nothing; *ignored*
with a warning, because no answer depends on it; *refused*, because ignoring it would change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from trtb.runner.findings import shown

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Status = Literal["honoured", "neutral", "ignored", "refused"]
Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of `body`: what values it takes here, and what becomes of them."""

    name: str
    status: Status
    accepts: str  # completes "expected …"
    note: str = ""
    neutral: tuple[Any, ...] = ()
    kinds: tuple[type, ...] = ()  # JSON types of a well-formed value, where a wrong one is worth its own word
    only: Endpoint | None = None  # known at one endpoint only


def _neutral(name: str, value: Any, *kinds: type, accepts: str = "", note: str = "") -> Parameter:
    return Parameter(name, "neutral", accepts or shown(value), note, (value,), kinds)


def _chat(name: str, accepts: str, note: str = "") -> Parameter:
    return Parameter(name, "honoured", accepts, note, only="chat")


def _ignored(name: str, note: str) -> Parameter:
    return Parameter(name, "ignored", "anything", note)


def _refused(name: str, note: str = "") -> Parameter:
    return Parameter(name, "refused", "nothing: leave it out", note)


_NUMBER = (int, float)
_TOOLS = "functions are the old form of tools; use tools"
_TOKENS = "tokens are not returned, only text"
_GUIDED = "checked before anything is sent; a construct that the engine would not hold to is refused"
_CHAT = "the checkpoint's own chat template is used as it is"
_OPENAI = "a setting of the hosted API"

TABLE: Final[tuple[Parameter, ...]] = (
    Parameter("model", "honoured", "the engine's name or one of its aliases"),
    _chat("messages", "a list of messages, at least one", "text only"),
    Parameter(
        "prompt",
        "honoured",
        "a string, a list of strings, a list of token ids, or a list of such lists",
        "no chat template; several prompts give several choices",
        only="completions",
    ),
    Parameter("max_tokens", "honoured", "an integer of at least 1", "max_completion_tokens wins over it"),
    _chat("max_completion_tokens", "an integer of at least 1"),
    Parameter(
        "min_tokens",
        "honoured",
        "an integer from 0 to max_tokens",
        "default 0; not with stop or a constraint",
    ),
    Parameter("temperature", "honoured", "a number from 0 to 2", "default 1; 0 is greedy"),
    Parameter("top_p", "honoured", "a number over 0 and at most 1", "default 1"),
    Parameter("top_k", "honoured", "an integer of at least -1", "0 and -1 turn it off; default off"),
    Parameter("seed", "honoured", "an integer of 64 bits"),
    Parameter("stop", "honoured", "a string or a list of at most 16, none empty", "not part of the answer"),
    Parameter("presence_penalty", "honoured", "a number from -2 to 2", "default 0"),
    Parameter("frequency_penalty", "honoured", "a number from -2 to 2", "default 0"),
    Parameter("repetition_penalty", "honoured", "a number over 0", "default 1"),
    Parameter("n", "honoured", "an integer from 1 to 16", "default 1; greedy answers are equal"),
    _neutral("best_of", 1, int),
    _neutral("stream", False, bool, note="every line gets one whole answer"),
    Parameter(
        "logprobs", "honoured", "a boolean; at /v1/completions 0", "of the chosen tokens; no alternatives"
    ),
    _neutral("top_logprobs", 0, int, note="the engine tells of the chosen token only"),
    _neutral("prompt_logprobs", 0, int, bool, note=_TOKENS),
    _neutral("logit_bias", {}, dict, accepts="{}", note="the engine takes no bias for each token"),
    _chat("tools", "a list of functions", "refused where the engine's chat template has no tools"),
    _neutral("functions", [], list, accepts="[]", note=_TOOLS),
    _chat("tool_choice", '"none" or "auto"', "required and named functions are refused"),
    _neutral("function_call", "none", str, dict, note=_TOOLS),
    Parameter("response_format", "honoured", "text, json_object or json_schema", _GUIDED),
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
    _neutral("add_generation_prompt", True, bool, note="continue_final_message turns it off"),
    _chat("continue_final_message", "a boolean", "the last message is an assistant's, and is gone on with"),
    _neutral("add_special_tokens", False, bool, note=_CHAT),
    _refused("chat_template", _CHAT),
    _chat("chat_template_kwargs", "an object", "handed to the checkpoint's chat template"),
    _refused("documents", _CHAT),
    Parameter(
        "suffix", "refused", "nothing: leave it out", "the engine does not fill in", only="completions"
    ),
    _refused("truncate_prompt_tokens", "a prompt is never cut"),
    _refused("allowed_token_ids"),
    _refused("audio", "this engine writes text only"),
    _refused("prediction"),
    _refused("web_search_options", "nothing is fetched during a run"),
    _refused("mm_processor_kwargs", "this engine takes text only"),
    _refused("logits_processors", "no code of a request is run"),
    Parameter("guided_json", "honoured", "a JSON schema", _GUIDED),
    Parameter("guided_regex", "honoured", "a regular expression", _GUIDED),
    Parameter("guided_choice", "honoured", "a list of strings, none empty", _GUIDED),
    Parameter("guided_grammar", "honoured", "an EBNF grammar with a rule root", _GUIDED),
    _refused("structural_tag"),
    Parameter("structured_outputs", "honoured", "json, regex, choice or grammar", _GUIDED),
    _ignored("user", "names the end user to a hosted API"),
    _ignored("metadata", "kept with the answer by a hosted API; use custom_id"),
    _ignored("store", _OPENAI),
    _ignored("service_tier", _OPENAI),
    _ignored("safety_identifier", _OPENAI),
    _ignored("prompt_cache_key", "shared prefixes are found without it"),
    _ignored("prompt_cache_retention", "shared prefixes are found without it"),
    _ignored("stream_options", "usage is always reported"),
    _ignored("parallel_tool_calls", "the model decides how many tools it calls"),
    _ignored("guided_decoding_backend", "the engine has one"),
    _ignored("guided_whitespace_pattern", "the engine chooses the white space of JSON"),
    _ignored("priority", "the order of a run is chosen with --order"),
    _ignored("request_id", "request ids are the runner's own"),
    _ignored("cache_salt", "a run shares its cache with nobody else"),
)
BY_NAME: Final = {parameter.name: parameter for parameter in TABLE}

# what differs between the backends; "guided" and "bias" are how TensorRT-LLM's own documents call them
_ON_TENSORRT_LLM: Final = {
    "response_format": "where the engine is deployed with guided_decoding_backend",
    "guided_json": "where the engine is deployed with guided_decoding_backend",
    "guided_regex": "where the engine is deployed with guided_decoding_backend",
    "guided_choice": "where the engine is deployed with guided_decoding_backend",
    "guided_grammar": "where the engine is deployed with guided_decoding_backend",
    "structured_outputs": "where the engine is deployed with guided_decoding_backend",
}


def as_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, status on openvino, status on tensorrt_llm, accepted values and note of each parameter."""
    for parameter in TABLE:
        condition = _ON_TENSORRT_LLM.get(parameter.name)
        other = f"{parameter.status} {condition}" if condition else parameter.status
        yield parameter.name, parameter.status, other, parameter.accepts, parameter.note
