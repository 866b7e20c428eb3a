"""Turn one line of a request file into a request, or into the list of what is wrong with it.

Nearly all lines are plain and take the quick way (`plain`). The others are parsed by orjson, their settings
checked by pydantic (`parameters`), their messages by hand (`messages`), to list every fault in words.

Rules: custom_id is a string, not only white space, compared byte for byte, never trimmed. method is exactly
"POST". url is /v1/chat/completions or /v1/completions; without /v1, or with a slash at the end, it is taken
with a warning.
Unknown keys are named in a warning. Of a key given twice the last counts, as in every JSON parser here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from trtb.runner import chat_options, completion_prompt, parameters
from trtb.runner import messages as message_rules
from trtb.runner.findings import (
    INVALID_ENCODING,
    INVALID_JSON_LINE,
    LINE_TOO_LONG,
    MODEL_MISMATCH,
    UNSUPPORTED_ENDPOINT,
    Fault,
    Faults,
    Finding,
    invalid,
    kind_of,
    shown,
    shown_key,
    warning,
)
from trtb.runner.parameter_table import Endpoint
from trtb.runner.plain import read_plain, to_request
from trtb.runner.reader import BOM
from trtb.runner.request import Capabilities, ChatRequest, CompletionRequest, Request, SamplingParams

ENDPOINTS: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
ENDPOINT_ALIASES = {spelling: url for url in ENDPOINTS for spelling in (url + "/", url[3:], url[3:] + "/")}
MAX_DEPTH = 200  # what JSON libraries agree to read and to write back

_UNDECODABLE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip", b"(\xb5": "zstd"}


@dataclass(frozen=True, slots=True)
class Valid:
    """A line that can run."""

    request: Request
    warnings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Invalid:
    """A line that cannot run; `findings` has at least one error, and the line's warnings."""

    line: int
    custom_id: str | None  # where the line has a usable one
    findings: tuple[Finding, ...]


ParsedLine = Valid | Invalid


class LineParser:
    """Parses lines for one engine.

    Args:
        model_names: The names that `body.model` may have; None takes any.
        strict_params: Whether an unknown parameter is an error instead of a warning.
        capabilities: What the engine can do beyond sampling text.
    """

    def __init__(
        self,
        model_names: frozenset[str] | None,
        strict_params: bool,
        capabilities: Capabilities = parameters.DEFAULT_CAPABILITIES,
    ) -> None:
        self._model_names = model_names
        self._strict_params = strict_params
        self._capabilities = capabilities

    def parse(self, number: int, data: bytes) -> ParsedLine:
        """Return the request on a line, or every fault of it; never raises for what the line holds."""
        line = read_plain(data, self._model_names)
        if line is None:
            return self._examine(number, data)
        return Valid(to_request(number, line), ())

    def _examine(self, number: int, data: bytes) -> ParsedLine:
        try:
            line = orjson.loads(data)
        except (orjson.JSONDecodeError, RecursionError) as exc:
            return _refused(number, None, not_json(data, exc))
        if not isinstance(line, dict):
            found = f"the line is {kind_of(line)}; expected a JSON object"
            return _refused(number, None, Fault(None, INVALID_JSON_LINE, found, _ONE_OBJECT, column=1))
        custom_id = usable_custom_id(line)
        if _is_deeper_than(MAX_DEPTH, line):
            return _refused(number, custom_id, _TOO_DEEP)
        faults = Faults()
        if custom_id is None:
            given = line.get("custom_id")
            found = "missing" if given is None else shown(given)
            faults.add(invalid("custom_id", found, "a string that is not blank"))
        request = self._check_request(number, custom_id or "", line, faults)
        findings = tuple(fault.on(number, custom_id) for fault in faults.items)
        if faults.num_errors or custom_id is None or request is None:
            return Invalid(number, custom_id, findings)
        return Valid(request, findings)

    def _check_request(
        self, number: int, custom_id: str, line: dict[str, Any], faults: Faults
    ) -> Request | None:
        """Check all but custom_id; the request is good for nothing where an error was added."""
        method, url, body = line.get("method"), line.get("url"), line.get("body")
        if method != "POST":
            found = "missing" if method is None else shown(method)
            faults.add(invalid("method", found, '"POST", in capitals'))
        endpoint = _check_url(url, faults)
        for key in line:
            if key not in ("custom_id", "method", "url", "body"):
                name = shown_key(key)
                faults.add(warning(name, f"{name}: unknown key beside body, ignored"))
        if endpoint is None:  # the body of another endpoint follows other rules
            return None
        if not isinstance(body, dict):
            faults.add(invalid("body", "missing" if body is None else kind_of(body), "an object"))
            return None
        self._check_model(body.get("model"), faults)
        sampling = parameters.check(
            body,
            faults,
            strict_params=self._strict_params,
            endpoint=endpoint,
            capabilities=self._capabilities,
        )
        if endpoint == "completions":
            prompts = completion_prompt.check(body.get("prompt"), faults)
            if sampling is None:
                return None
            return CompletionRequest(number, custom_id, str(body.get("model")), prompts, sampling)
        return self._check_chat(number, custom_id, body, sampling, faults)

    def _check_chat(
        self,
        number: int,
        custom_id: str,
        body: dict[str, Any],
        sampling: SamplingParams | None,
        faults: Faults,
    ) -> ChatRequest | None:
        options = chat_options.check(body, faults, self._capabilities)
        messages = message_rules.check(
            body.get("messages"), faults, can_call_tools=self._capabilities.tool_style is not None
        )
        if options.tools and sampling and sampling.guide:
            faults.add(invalid("body.tools", "given with a constrained answer", "one of the two"))
        if sampling is None:
            return None
        return ChatRequest(
            number,
            custom_id,
            str(body.get("model")),
            messages,
            sampling,
            options.tools,
            options.template_kwargs,
            options.continue_final_message,
        )

    def _check_model(self, model: Any, faults: Faults) -> None:
        if not isinstance(model, str):
            found = "missing" if model is None else kind_of(model)
            faults.add(invalid("body.model", found, "the engine's name, a string"))
        elif self._model_names is not None and model not in self._model_names:
            names = " or ".join(sorted(self._model_names))
            hint = f"--model-alias {shown(model)} takes it for the chosen engine"
            message = f"body.model: {shown(model)}; expected {names}"
            faults.add(Fault("body.model", MODEL_MISMATCH, message, hint))


def usable_custom_id(line: Any) -> str | None:
    """Return the custom_id of a parsed line where it can name an answer."""
    custom_id = line.get("custom_id") if isinstance(line, dict) else None
    return custom_id if isinstance(custom_id, str) and custom_id.strip() else None


def too_long(number: int, num_bytes: int, max_line_bytes: int) -> Invalid:
    """Return the verdict on a line that was longer than the reader keeps."""
    message = f"the line has {num_bytes} bytes; expected at most {max_line_bytes}"
    return _refused(number, None, Fault(None, LINE_TOO_LONG, message, "raise --max-line-bytes"))


def not_json(data: bytes, exc: Exception) -> Fault:
    """Return the fault of bytes that orjson does not take: their encoding, or their JSON."""
    try:
        data.decode()
    except UnicodeDecodeError as bad:
        guess = _UNDECODABLE.get(data[:2])
        hint = f"the file looks like {guess}" if guess else "save the file as UTF-8"
        message = f"byte 0x{data[bad.start]:02X}; expected UTF-8"
        return Fault(None, INVALID_ENCODING, message, hint, column=bad.start + 1)
    if isinstance(exc, RecursionError):
        return _TOO_DEEP
    if data.startswith(BOM):
        message = "a UTF-8 byte order mark inside the file; expected one JSON object"
        return Fault(None, INVALID_JSON_LINE, message, "were files joined? remove the mark", column=1)
    column = 1
    if isinstance(exc, orjson.JSONDecodeError):
        # its position counts characters; ours are bytes, what an editor or `cut -b` goes to
        column = len(exc.doc[: exc.pos].encode()) + 1
        message = f"not JSON: {exc.msg}; expected one JSON object"
    else:
        message = "not JSON; expected one JSON object"
    return Fault(None, INVALID_JSON_LINE, message, _ONE_OBJECT, column=column)


_ONE_OBJECT = "each line is one whole JSON object"
_TOO_DEEP = Fault(
    None, INVALID_JSON_LINE, f"nested deeper than {MAX_DEPTH} levels; expected a request", _ONE_OBJECT
)


def _refused(number: int, custom_id: str | None, fault: Fault) -> Invalid:
    return Invalid(number, custom_id, (fault.on(number, custom_id),))


def _check_url(url: Any, faults: Faults) -> Endpoint | None:
    """Return the endpoint that a url means, or None where it is not one of ours."""
    expected = " or ".join(ENDPOINTS)
    if not isinstance(url, str):
        faults.add(invalid("url", "missing" if url is None else kind_of(url), expected))
        return None
    if url in ENDPOINT_ALIASES:
        message = f"url: another spelling, taken as {ENDPOINT_ALIASES[url]}"  # the same on every such line
        faults.add(warning("url", message, code=UNSUPPORTED_ENDPOINT))
        return ENDPOINTS[ENDPOINT_ALIASES[url]]
    if url not in ENDPOINTS:
        hint = f"the endpoints of this engine: {', '.join(ENDPOINTS)}; no address is ever opened"
        faults.add(Fault("url", UNSUPPORTED_ENDPOINT, f"url: {shown(url)}; expected {expected}", hint))
    return ENDPOINTS.get(url)


def _is_deeper_than(max_depth: int, value: Any) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
