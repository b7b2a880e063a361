"""Sizes of a request, all of them the SDK's or the decision record's; none is a setting."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from horde_sdk.generation_parameters.text.chat_limits import (
    MAX_CHAT_SCHEMA_NESTING,
    MAX_CHAT_TEXT_BYTES,
    MAX_CHAT_TOOL_COUNT,
    MAX_CHAT_TOOL_SPEC_BYTES,
    chat_schema_exceeds_nesting,
)

from horde.chat_rules.depth import exceeds_depth
from horde.chat_rules.estimate import iter_message_texts
from horde.chat_rules.violation import ContractViolation

__all__ = [
    "MAX_CHAT_STOP_LENGTH",
    "MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES",
    "MAX_CHAT_TOOL_CALL_COUNT",
    "MAX_CHAT_TOOL_CALL_ID_LENGTH",
    "MAX_CHAT_TOOL_CALL_NAME_LENGTH",
    "find_nesting_violation",
    "find_text_size_violation",
    "find_tool_call_bound_violation",
    "find_tool_spec_violation",
]

MAX_CHAT_STOP_LENGTH: Final = 1024
"""The most characters of a stop sequence."""

MAX_CHAT_TOOL_CALL_COUNT: Final = 128
"""The most tool calls of one message (decision U16)."""

MAX_CHAT_TOOL_CALL_ID_LENGTH: Final = 256
"""The most characters of a tool call's id."""

MAX_CHAT_TOOL_CALL_NAME_LENGTH: Final = 64
"""The most characters of a called function's name, as of a tool's."""

MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES: Final = 256 * 1024
"""The most UTF-8 bytes of one call's arguments."""

_UNSUPPORTED: Final = "UnsupportedChatParameter"


def _nests_too_deep(schema: object) -> bool:
    # The SDK's bound in containers is about twice its bound in levels, so what is within the latter needs no walk.
    return exceeds_depth(schema, MAX_CHAT_SCHEMA_NESTING) and chat_schema_exceeds_nesting(schema)


def find_nesting_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first schema nested deeper than :data:`MAX_CHAT_SCHEMA_NESTING` below its root (REQ-55)."""
    message = f"A JSON Schema may nest at most {MAX_CHAT_SCHEMA_NESTING} levels below its root."
    for index, tool in enumerate(body.get("tools") or ()):
        if _nests_too_deep(tool["function"].get("parameters")):
            return ContractViolation(_UNSUPPORTED, f"tools[{index}].function.parameters", message)
    named = (body.get("response_format") or {}).get("json_schema") or {}
    if _nests_too_deep(named.get("schema")):
        return ContractViolation(_UNSUPPORTED, "response_format.json_schema.schema", message)
    return None


def find_text_size_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return a violation when the texts of all messages, tool calls included, take over 1 MiB of UTF-8 (REQ-60)."""
    size = sum(
        len(text) if text.isascii() else len(text.encode())
        for message in body["messages"]
        for text in iter_message_texts(message)
    )
    if size <= MAX_CHAT_TEXT_BYTES:
        return None
    return ContractViolation(
        _UNSUPPORTED,
        "messages",
        "The texts of 'messages', tool call names and arguments included, may take at most "
        f"{MAX_CHAT_TEXT_BYTES} bytes of UTF-8, but take {size}.",
    )


def find_tool_spec_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return a violation of the tool count or of the tool spec's size in compact JSON (REQ-58, FMT-10)."""
    tools = body.get("tools") or []
    if len(tools) > MAX_CHAT_TOOL_COUNT:
        return ContractViolation(
            _UNSUPPORTED,
            "tools",
            f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_CHAT_TOOL_COUNT}, but got an "
            f"array with length {len(tools)} instead.",
        )
    keys = ("tools", "tool_choice", "response_format")
    spec = {key: body[key] for key in keys if body.get(key) is not None}
    size = len(orjson.dumps(spec)) if spec else 0
    if size <= MAX_CHAT_TOOL_SPEC_BYTES:
        return None
    return ContractViolation(
        _UNSUPPORTED,
        next(iter(spec)),
        f"'tools', 'tool_choice' and 'response_format' together may take at most {MAX_CHAT_TOOL_SPEC_BYTES} bytes of "
        f"compact JSON, but take {size}.",
    )


def find_tool_call_bound_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first tool call of the history that is out of bounds (REQ-59, decision U16)."""
    for index, message in enumerate(body["messages"]):
        if (calls := message.get("tool_calls")) and (violation := _find_call_violation(index, calls)):
            return violation
        if not 0 < len(message.get("tool_call_id", "x")) <= MAX_CHAT_TOOL_CALL_ID_LENGTH:
            return ContractViolation(_UNSUPPORTED, f"messages[{index}].tool_call_id", _ID_LENGTH)
    return None


def _find_call_violation(index: int, calls: Sequence[Mapping[str, Any]]) -> ContractViolation | None:
    path = f"messages[{index}].tool_calls"
    if len(calls) > MAX_CHAT_TOOL_CALL_COUNT:
        return ContractViolation(
            _UNSUPPORTED, path, f"A message may carry at most {MAX_CHAT_TOOL_CALL_COUNT} tool calls."
        )
    for position, call in enumerate(calls):
        if fault := _tool_call_fault(call):
            return ContractViolation(_UNSUPPORTED, f"{path}[{position}].{fault[0]}", fault[1])
    return None


_ID_LENGTH: Final = f"A tool call's id takes 1 to {MAX_CHAT_TOOL_CALL_ID_LENGTH} characters."


def _tool_call_fault(call: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the key of a call that is out of bounds and why, or None."""
    function = call["function"]
    if not 0 < len(call["id"]) <= MAX_CHAT_TOOL_CALL_ID_LENGTH:
        return "id", _ID_LENGTH
    if not 0 < len(function["name"]) <= MAX_CHAT_TOOL_CALL_NAME_LENGTH:
        return "function.name", f"A function's name takes 1 to {MAX_CHAT_TOOL_CALL_NAME_LENGTH} characters."
    if len(function["arguments"].encode()) > MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES:
        return (
            "function.arguments",
            f"A call's arguments take at most {MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES} bytes of UTF-8.",
        )
    return None
