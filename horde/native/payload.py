"""From a request to the job a worker receives (SMP-1 to SMP-5, TOO-18, TOO-19, MSG-19); pure.

What depends on the worker alone is added at the pop (:func:`with_members`), so that a pop need not read the payload.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from horde_sdk.generation_parameters.text.chat_limits import CHAT_SAMPLING_DEFAULTS

__all__ = ["build_payload", "count_images", "narrow_tools", "with_members"]

_OPTIONAL_PARAMS: Final = ("stop_sequence", "seed", "reasoning_effort")


def narrow_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool keys and the response format that the worker receives.

    None of the tool keys under ``tool_choice: none``; a forced function is that one tool with ``required``; the
    ``text`` format is no format.

    Args:
        body: A body with OpenAI's keys, within the shared rules.
    """
    narrowed: dict[str, Any] = {}
    response_format = body.get("response_format")
    if response_format and response_format["type"] != "text":
        narrowed["response_format"] = response_format
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools or choice == "none":
        return narrowed
    if isinstance(choice, Mapping):
        forced = choice["function"]["name"]
        tools, choice = [tool for tool in tools if tool["function"]["name"] == forced][:1], "required"
    narrowed["tools"] = tools
    if choice is not None:
        narrowed["tool_choice"] = choice
    if body.get("parallel_tool_calls") is not None:
        narrowed["parallel_tool_calls"] = body["parallel_tool_calls"]
    return narrowed


def _as_received(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def build_payload(
    messages: Sequence[Mapping[str, Any]],
    *,
    narrowed: Mapping[str, Any],
    params: Mapping[str, Any],
    max_length: int,
    max_context_length: int,
) -> dict[str, Any]:
    """Return a job's payload, complete but for what depends on the worker.

    Args:
        messages: The conversation that is left after fitting.
        narrowed: Tool keys and response format, from :func:`narrow_tools`.
        params: The request's ``params``, validated; null and missing are the same.
        max_length: Reply length after lowering, tokens.
        max_context_length: Context length after fitting, tokens.
    """
    samplings = {
        key: default if params.get(key) is None else params[key] for key, default in CHAT_SAMPLING_DEFAULTS.items()
    }
    optional = {key: params[key] for key in _OPTIONAL_PARAMS if params.get(key) is not None}
    return {
        "messages": [_as_received(message) for message in messages],
        "max_length": max_length,
        "max_context_length": max_context_length,
        **samplings,
        **optional,
        **narrowed,
    }


def count_images(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many image parts a conversation holds."""
    return sum(
        part.get("type") == "image_url"
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def with_members(stored: bytes, members: Mapping[str, Any]) -> bytes:
    """Return a stored JSON object with further members, put before its own without reading it.

    Args:
        stored: A JSON object with at least one member, as :func:`orjson.dumps` wrote it.
        members: Members whose names the object does not have.
    """
    return orjson.dumps(members)[:-1] + b"," + stored[1:] if members else stored
