"""What the front refuses or drops before it validates a body (REQ-3, ADR 0029).

Three steps in a fixed order: refuse what is not served, by its path; drop the keys that stock clients send at their
defaults; drop unknown keys where OpenAI ignores them. All three are pure and never raise for any JSON value.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from horde.chat_contract import SERVED_ROLES, ContractViolation

__all__ = [
    "DEFAULT_NO_OP_PARAMETERS",
    "REQUEST_KEYS",
    "SUPPORTED_MESSAGE_KEYS",
    "drop_default_no_ops",
    "drop_unknown_nested_keys",
    "find_refused_parameter",
]

REQUEST_KEYS: Final = frozenset(
    {
        "model", "models", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "frequency_penalty", "presence_penalty", "stop", "seed", "n", "horde", "reasoning_effort", "tools",
        "tool_choice", "parallel_tool_calls", "response_format", "stream", "stream_options", "user", "metadata",
    }
)  # fmt: skip
"""The keys of a request that are served; those of :data:`DEFAULT_NO_OP_PARAMETERS` stand beside them."""

DEFAULT_NO_OP_PARAMETERS: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType(
    {
        "logprobs": (False,),
        "top_logprobs": (0,),
        "store": (False,),
        "service_tier": ("auto", "default"),
    }
)
"""Keys that are accepted at these values alone, and then mean nothing (REQ-16)."""

SUPPORTED_MESSAGE_KEYS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "system": frozenset({"role", "content", "name"}),
        "developer": frozenset({"role", "content", "name"}),
        "user": frozenset({"role", "content", "name"}),
        "assistant": frozenset({"role", "content", "name", "tool_calls"}),
        "tool": frozenset({"role", "content", "tool_call_id"}),
    }
)
"""The keys of a message by its role (MSG-7); any other is dropped, as OpenAI ignores it."""

_SERVED_PARTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {role: frozenset({"text", "image_url"} if role == "user" else {"text"}) for role in SERVED_ROLES}
)
_PART_KEYS: Final = MappingProxyType({"text": ("type", "text"), "image_url": ("type", "image_url")})
_MAX_SHOWN: Final = 64


def _equals_default(value: object, defaults: tuple[object, ...]) -> bool:
    # JSON's false is not its 0, though Python's is.
    return value is None or any(value == default and type(value) is type(default) for default in defaults)


def _refuse(path: str, message: str) -> ContractViolation:
    return ContractViolation("UnsupportedChatParameter", path, message)


def find_refused_parameter(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first key, role or content part that is not served, by its path, or None (REQ-4 to REQ-7).

    Args:
        body: The request as decoded JSON, not yet validated.
    """
    for key, value in body.items():
        if key in REQUEST_KEYS:
            continue
        shown = key[:_MAX_SHOWN]
        defaults = DEFAULT_NO_OP_PARAMETERS.get(key)
        if defaults is None:
            return _refuse(shown, f"Unknown parameter: '{shown}'. This service does not serve it; leave it out.")
        if not _equals_default(value, defaults):
            allowed = " or ".join(str(default).lower() for default in defaults)
            return _refuse(shown, f"Unsupported value for '{shown}': only {allowed} is served. Leave it out.")
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict) and (refused := _find_refused_in_message(f"messages[{index}]", message)):
            return refused
    return None


def _find_refused_in_message(path: str, message: Mapping[str, Any]) -> ContractViolation | None:
    role = message.get("role")
    if not isinstance(role, str):
        return None
    if role not in SERVED_ROLES:
        return _refuse(
            f"{path}.role",
            f"Invalid value: '{role[:_MAX_SHOWN]}'. Supported values are: 'system', 'developer', 'user', 'assistant' "
            "and 'tool'.",
        )
    if role != "assistant" and message.get("tool_calls") is not None:
        return _refuse(
            f"{path}.tool_calls", f"Invalid parameter: '{path}.tool_calls' is only allowed on an assistant message."
        )
    content = message.get("content")
    for position, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in _SERVED_PARTS[role]:
            shown = kind[:_MAX_SHOWN]
            return _refuse(
                f"{path}.content[{position}].type={shown}",
                f"A content part of type '{shown}' is not served in a message of role '{role}'.",
            )
    return None


def drop_default_no_ops(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body without keys that say nothing: no-op keys, nulls, empty ``tools``, a text format (REQ-8, REQ-14).

    Args:
        body: A body that passed :func:`find_refused_parameter`; not changed.
    """
    kept = {key: value for key, value in body.items() if value is not None and key not in DEFAULT_NO_OP_PARAMETERS}
    if kept.get("tools") == []:
        del kept["tools"]
    if kept.get("response_format") == {"type": "text"}:
        del kept["response_format"]
    return kept


def drop_unknown_nested_keys(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body without the unserved keys inside messages, tools and the tool choice (REQ-9).

    A null on an optional key inside a message counts as omitted too (decision U47). What is not of the expected JSON
    type is left for validation to report.

    Args:
        body: A body that passed the steps before; not changed.
    """
    cleaned = dict(body)
    if isinstance(messages := body.get("messages"), list):
        cleaned["messages"] = [_clean_message(message) for message in messages]
    if isinstance(tools := body.get("tools"), list):
        cleaned["tools"] = [_clean_tool(tool) for tool in tools]
    if isinstance(choice := body.get("tool_choice"), dict):
        cleaned["tool_choice"] = _keep(choice, ("type", "function"), function=("name",))
    return cleaned


def _keep(value: Any, keys: tuple[str, ...], **nested: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON value
    """Keep an object's keys, and those of the objects inside it; any other value stays as it is."""
    if not isinstance(value, dict):
        return value
    kept = {key: value[key] for key in keys if value.get(key) is not None}
    for key, inner in nested.items():
        if key in kept:
            kept[key] = _keep(kept[key], inner)
    return kept


def _clean_tool(tool: Any) -> Any:  # noqa: ANN401 - any JSON value
    return _keep(tool, ("type", "function"), function=("name", "description", "parameters", "strict"))


def _clean_message(message: Any) -> Any:  # noqa: ANN401 - any JSON value
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    if not isinstance(role, str) or role not in SUPPORTED_MESSAGE_KEYS:
        return message
    keys = SUPPORTED_MESSAGE_KEYS[role]
    kept = {key: value for key, value in message.items() if key in keys and (value is not None or key == "content")}
    if kept.get("name") == "":
        del kept["name"]
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_keep(call, ("id", "type", "function"), function=("name", "arguments")) for call in calls]
        if not calls:
            del kept["tool_calls"]
    if isinstance(content := kept.get("content"), list):
        kept["content"] = [_clean_part(part) for part in content]
    if role == "assistant" and kept.get("tool_calls") and "content" not in kept:
        kept["content"] = None
    return kept


def _clean_part(part: Any) -> Any:  # noqa: ANN401 - any JSON value
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _PART_KEYS:
        return part
    return _keep(part, _PART_KEYS[kind], image_url=("url", "detail"))
