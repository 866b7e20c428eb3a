"""The prompt of the completions endpoint: one or many, each text or token ids."""

from __future__ import annotations

from typing import Any

from trtb.runner.findings import Faults, invalid, kind_of, shown

MAX_PROMPTS = 128
_EXPECTED = "a string, a list of strings, a list of token ids, or a list of such lists"


def check(value: Any, faults: Faults) -> tuple[str | list[int], ...]:
    """Return the prompts; they are good for nothing where an error was added to `faults`."""
    path = "body.prompt"
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif isinstance(value, list) and value and all(_is_id(each) for each in value):
        prompts = [value]
    elif isinstance(value, list) and value:
        prompts = value
    else:
        found = "missing" if value is None else "an empty list" if value == [] else kind_of(value)
        faults.add(invalid(path, found, _EXPECTED))
        return ()
    if len(prompts) > MAX_PROMPTS:
        faults.add(invalid(path, f"{len(prompts)} prompts", f"at most {MAX_PROMPTS}"))
        return ()
    for i, prompt in enumerate(prompts):
        if faults.is_full:
            break
        _check_one(f"{path}[{i}]" if prompts is value else path, prompt, type(prompts[0]), faults)
    return tuple(prompts)


def _check_one(path: str, prompt: Any, kind: type, faults: Faults) -> None:
    if not isinstance(prompt, (str, list)) or type(prompt) is not kind:
        faults.add(invalid(path, kind_of(prompt), "prompts of one kind, text or token ids"))
    elif not prompt:
        found = "an empty string" if isinstance(prompt, str) else "an empty list"
        faults.add(invalid(path, found, "at least one token"))
    elif isinstance(prompt, list):
        bad = next((each for each in prompt if not _is_id(each)), None)
        if bad is not None:
            faults.add(invalid(path, shown(bad), "token ids, integers of at least 0"))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
