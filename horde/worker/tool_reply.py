"""The document that a grammar of tools made, as text and calls. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import uuid4

import orjson
from horde_sdk.worker.chat_declaration import ChatFaultReason
from pydantic_core import from_json

from horde.worker.backends.base import BackendError, ToolCall
from horde.worker.structured import satisfies
from horde.worker.tool_grammar import ToolGrammar

__all__ = ["ToolReply", "ToolViolationError", "read_tool_reply"]

_NAME: Final = re.compile(r'\{\s*"name"\s*:\s*("[^"]*")\s*,\s*"arguments"\s*:\s*')
"""The start of a call: the grammar puts the name first."""


class ToolViolationError(BackendError):
    """The reply is not what the job's tools allow."""

    fault_reason: ClassVar[ChatFaultReason] = ChatFaultReason.TOOL_VIOLATION


@dataclass(frozen=True, slots=True)
class ToolReply:
    """A reply taken apart.

    Attributes:
        content: Its text; empty when there is none.
        calls: Its calls, in order.
    """

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


def read_tool_reply(grammar: ToolGrammar, text: str, *, cut: bool) -> ToolReply:
    """Take a reply apart.

    Of a reply that was cut at its limit, whole calls are kept, and the arguments of a first call as far as they came:
    its finish reason says that they are not all there, as OpenAI's does.

    May take time for a large schema: call it in a thread.

    Args:
        grammar: What was asked for.
        text: The whole reply.
        cut: It reached its longest length.

    Raises:
        ToolViolationError: It is something else, which a grammar that was applied cannot have let pass.
    """
    try:
        document = from_json(text, allow_partial=True) if cut else orjson.loads(text)
    except ValueError as error:
        if cut:
            return _require_calls(grammar, ToolReply())
        raise ToolViolationError("The model server did not keep to the grammar of the tools.") from error
    if not isinstance(document, Mapping):
        raise ToolViolationError("The model server did not keep to the grammar of the tools.")
    if not grammar.calls_once and "tool_calls" not in document:
        return _require_calls(grammar, ToolReply(content=_content(grammar, document.get("content"))))
    listed = [document] if grammar.calls_once else document["tool_calls"]
    if not isinstance(listed, list):
        raise ToolViolationError("The model server did not keep to the grammar of the tools.")
    whole = _is_whole(text)
    calls = [_read_call(grammar, call) for call in (listed if whole else listed[:-1])]
    if not calls and cut:
        calls = _first_call(grammar, text)
    return _require_calls(grammar, ToolReply(calls=tuple(calls)))


def _is_whole(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _require_calls(grammar: ToolGrammar, reply: ToolReply) -> ToolReply:
    if grammar.must_call and not reply.calls:
        raise ToolViolationError("The reply makes no call and has to.")
    return reply


def _content(grammar: ToolGrammar, content: object) -> str:
    if grammar.formats_content:
        return orjson.dumps(content).decode()
    return content if isinstance(content, str) else ""


def _read_call(grammar: ToolGrammar, call: object) -> ToolCall:
    name, arguments = (call.get("name"), call.get("arguments")) if isinstance(call, Mapping) else (None, None)
    if not isinstance(name, str) or not grammar.offers(name) or not isinstance(arguments, dict):
        raise ToolViolationError("The reply calls what is not offered.")
    schema = grammar.parameters_of(name)
    if schema is not None and not satisfies(schema, arguments):
        raise ToolViolationError("The arguments of a strict tool do not satisfy its schema.")
    return _call(name, orjson.dumps(arguments).decode())


def _first_call(grammar: ToolGrammar, text: str) -> list[ToolCall]:
    """Return the call at which a reply was cut, its arguments as far as they came."""
    start = _NAME.search(text)
    if start is None:
        return []
    name: Any = orjson.loads(start[1])
    return [_call(name, text[start.end() :])] if grammar.offers(name) else []


def _call(name: str, arguments: str) -> ToolCall:
    return ToolCall(f"call_{uuid4().hex}", name, arguments)
