"""Chat requests as a client sends them, and what the front's request side makes of them; no application runs."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from horde.oai.errors import ChatFrontError
from horde.oai.mapping import build_native_chat_body
from horde.oai.prepare import read_chat_request
from tests.support.front import chat_body

__all__ = [
    "OPERATION_KEY",
    "assistant_calls",
    "forwarded",
    "function_tool",
    "read_refusal",
    "refused_at",
    "tool_answer",
]

OPERATION_KEY = "44444444-4444-4444-8444-444444444444"


def assistant_calls(*ids: str, name: str = "lookup", arguments: str = "{}") -> dict[str, Any]:
    """Return an assistant message that makes one call for each id."""
    calls = [{"id": each, "type": "function", "function": {"name": name, "arguments": arguments}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool_answer(identifier: str, content: Any = "42") -> dict[str, Any]:
    """Return the answer to one call."""
    return {"role": "tool", "tool_call_id": identifier, "content": content}


def function_tool(name: str = "lookup", **function: Any) -> dict[str, Any]:
    """Return a tool; further keys are its function's."""
    return {"type": "function", "function": {"name": name} | function}


def read_refusal(body: Mapping[str, Any] | bytes) -> ChatFrontError:
    """Return the error a body is refused with; the test fails when it is accepted."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    with pytest.raises(ChatFrontError) as caught:
        read_chat_request(data)
    return caught.value


def refused_at(**more: Any) -> tuple[str, str | None]:
    """Return code and param of the refusal of a minimal request with more keys."""
    error = read_refusal(chat_body(**more))
    assert error.status in {400, 404}
    return error.code, error.param


def forwarded(**more: Any) -> dict[str, Any]:
    """Return the native body that a minimal request with more keys becomes, without its operation key."""
    request, body = read_chat_request(orjson.dumps(chat_body(**more)))
    native = build_native_chat_body(request, body, operation_key=OPERATION_KEY, relay=False)
    assert native.pop("operation_key") == OPERATION_KEY
    return native
