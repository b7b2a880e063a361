"""The request rules that front and Horde share, in their order (REQ-49 to REQ-60)."""

from collections.abc import Mapping
from typing import Any

from horde.chat_rules.estimate import iter_message_texts
from horde.chat_rules.limits import (
    find_nesting_violation,
    find_text_size_violation,
    find_tool_call_bound_violation,
    find_tool_spec_violation,
)
from horde.chat_rules.schema_cost import find_schema_cost_violation
from horde.chat_rules.strict_schema import find_strict_schema_fault
from horde.chat_rules.tool_history import find_tool_history_violation
from horde.chat_rules.violation import ContractViolation

__all__ = ["find_contract_violation", "find_native_violation"]


def find_contract_violation(body: Mapping[str, Any], *, openai_guards: bool = False) -> ContractViolation | None:
    """Return the first shared rule that a request breaks, or None.

    Args:
        body: A body with OpenAI's keys ``messages``, ``tools``, ``tool_choice``, ``parallel_tool_calls`` and
            ``response_format``, each validated against its shape; null and missing are the same.
        openai_guards: Apply OpenAI's refusal of a JSON mode whose messages never mention JSON (FMT-9).
    """
    return (
        _find_choice_without_tools(body)
        or find_nesting_violation(body)
        or find_tool_history_violation(body["messages"])
        or _find_strict_schema_violation(body)
        or find_text_size_violation(body)
        or (_find_unmentioned_json(body) if openai_guards else None)
    )


def find_native_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first further rule of the native route that a request breaks, or None (REQ-57 to REQ-59).

    Args:
        body: As for :func:`find_contract_violation`, and within those rules.
    """
    return (
        find_tool_spec_violation(body)
        or find_schema_cost_violation(body)
        or find_tool_call_bound_violation(body)
        or _find_undefined_forced_function(body)
    )


def _find_choice_without_tools(body: Mapping[str, Any]) -> ContractViolation | None:
    if body.get("tools"):
        return None
    for key in ("tool_choice", "parallel_tool_calls"):
        if body.get(key) is not None:
            return ContractViolation(
                "ChatRequestConflict",
                key,
                f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified. Leave out '{key}', or "
                "send at least one tool.",
            )
    return None


def _find_strict_schema_violation(body: Mapping[str, Any]) -> ContractViolation | None:
    for index, tool in enumerate(body.get("tools") or ()):
        function = tool["function"]
        if function.get("strict") and (fault := find_strict_schema_fault(function.get("parameters"))):
            return ContractViolation(
                "UnsupportedChatParameter",
                f"tools[{index}].function.parameters",
                f"Invalid schema for function '{function['name']}': {fault}",
            )
    response_format = body.get("response_format") or {}
    if response_format.get("type") != "json_schema":
        return None
    named = response_format["json_schema"]
    if named.get("strict") and (fault := find_strict_schema_fault(named["schema"])):
        return ContractViolation(
            "UnsupportedChatParameter",
            "response_format",
            f"Invalid schema for response_format '{named['name']}': {fault}",
        )
    return None


def _find_unmentioned_json(body: Mapping[str, Any]) -> ContractViolation | None:
    if (body.get("response_format") or {}).get("type") != "json_object":
        return None
    if any("json" in text.lower() for message in body["messages"] for text in iter_message_texts(message)):
        return None
    return ContractViolation(
        "ChatRequestConflict",
        "messages",
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
    )


def _find_undefined_forced_function(body: Mapping[str, Any]) -> ContractViolation | None:
    choice = body.get("tool_choice")
    if not isinstance(choice, Mapping):
        return None
    name = choice["function"]["name"]
    if any(tool["function"]["name"] == name for tool in body.get("tools") or ()):
        return None
    return ContractViolation(
        "UnsupportedChatParameter",
        "tool_choice",
        f"Invalid value for 'tool_choice': the function '{name[:64]}' is not among 'tools'.",
    )
