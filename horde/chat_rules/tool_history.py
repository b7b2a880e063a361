"""OpenAI's rule for tool calls in a conversation (TOO-12 to TOO-15).

The tool messages come right after the assistant message whose calls they answer, and answer each of its ids exactly
once, in any order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from horde.chat_rules.violation import ContractViolation

__all__ = ["find_tool_history_violation"]

_NOT_A_RESPONSE = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
)


def _unanswered(index: int, open_ids: Sequence[str]) -> ContractViolation:
    ids = ", ".join(identifier[:64] for identifier in open_ids[:16])
    return ContractViolation(
        "UnsupportedChatParameter",
        f"messages[{index}].role",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {ids}",
    )


def _misplaced_answer(index: int, identifier: str, issued: frozenset[str], answered: set[str]) -> ContractViolation:
    if issued and identifier not in issued and answered != issued:
        return ContractViolation(
            "UnsupportedChatParameter",
            f"messages[{index}].tool_call_id",
            f"Invalid parameter: 'tool_call_id' of '{identifier[:64]}' not found in 'tool_calls' of previous message.",
        )
    return ContractViolation("UnsupportedChatParameter", f"messages[{index}].role", _NOT_A_RESPONSE)


def find_tool_history_violation(messages: Sequence[Mapping[str, Any]]) -> ContractViolation | None:
    """Return the first place where a conversation breaks the rule, or None.

    Args:
        messages: The conversation, validated for shape.
    """
    issued: frozenset[str] = frozenset()
    answered: set[str] = set()
    asked_at = 0
    order: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            identifier = message["tool_call_id"]
            if identifier not in issued or identifier in answered:
                return _misplaced_answer(index, identifier, issued, answered)
            answered.add(identifier)
            continue
        if answered != issued:
            return _unanswered(index, [identifier for identifier in order if identifier not in answered])
        order = [call["id"] for call in message.get("tool_calls") or ()]
        issued, answered, asked_at = frozenset(order), set(), index
    if answered != issued:
        return _unanswered(asked_at, [identifier for identifier in order if identifier not in answered])
    return None
