"""What belongs to a chat alone: tools, the chat template's own options, and who speaks last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtb.runner import tool_calls
from trtb.runner.findings import Faults, invalid, kind_of, shown, unsupported
from trtb.runner.request import Capabilities

NO_TOOLS = "the engine's chat template has no tools"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of one chat, checked."""

    tools: list[dict[str, Any]]
    template_kwargs: dict[str, Any]
    continue_final_message: bool


def check(body: dict[str, Any], faults: Faults, capabilities: Capabilities) -> ChatOptions:
    """Return a chat's options; they are good for nothing where an error was added to `faults`."""
    tools = _check_tools(body, faults, capabilities)
    kwargs = body.get("chat_template_kwargs")
    if kwargs is not None and not isinstance(kwargs, dict):
        faults.add(invalid("body.chat_template_kwargs", kind_of(kwargs), "an object"))
        kwargs = None
    return ChatOptions(tools, kwargs or {}, _check_continue(body, faults))


def _check_tools(body: dict[str, Any], faults: Faults, capabilities: Capabilities) -> list[dict[str, Any]]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    names: frozenset[str] = frozenset()
    if tools is None or tools == []:
        tools = []
    elif capabilities.tool_style is None:
        faults.add(unsupported("body.tools", kind_of(tools), "none", NO_TOOLS))
        return []
    else:
        problems = tool_calls.check_tools(tools)
        for fault in problems:
            faults.add(fault)
        if not any(fault.is_error for fault in problems):
            names = tool_calls.names_of(tools)
    if choice is not None and not tools and choice not in ("none", "auto"):
        faults.add(invalid("body.tool_choice", f"{shown(choice)} without tools", '"none", or tools'))
        return []
    for fault in tool_calls.check_tool_choice(choice, names):
        faults.add(fault)
    return [] if choice == "none" else tools


def _check_continue(body: dict[str, Any], faults: Faults) -> bool:
    value = body.get("continue_final_message")
    path = "body.continue_final_message"
    if value is not None and not isinstance(value, bool):
        faults.add(invalid(path, shown(value), "a boolean"))
    if value is not True:
        return False
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        faults.add(invalid(path, "true after another's message", "an assistant's message as the last"))
    return True
