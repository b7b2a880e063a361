"""What a model server's reply to a job with tools is made into: calls that the job allows, or a fault."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
from horde_sdk.worker.chat_declaration import ChatFinishReason

from horde.worker.backends.base import GenerationEvent, GenerationFinished, TextDelta, ToolCall
from horde.worker.tool_grammar import ToolGrammar
from horde.worker.tool_reply import ToolViolationError, read_tool_reply

__all__ = ["read_grammar_reply", "read_template_reply"]


async def read_grammar_reply(
    events: AsyncGenerator[GenerationEvent], grammar: ToolGrammar
) -> AsyncGenerator[GenerationEvent]:
    """Take the document of a job with tools apart once it is whole; reasoning is passed on as it comes.

    Raises:
        ToolViolationError: It is none that the tools allow.
    """
    texts: list[str] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
            elif isinstance(event, GenerationFinished):
                cut = event.finish_reason is ChatFinishReason.LENGTH
                reply = await asyncio.to_thread(read_tool_reply, grammar, "".join(texts), cut=cut)
                if reply.content:
                    yield TextDelta(reply.content)
                called = ChatFinishReason.TOOL_CALLS if reply.calls else ChatFinishReason.STOP
                yield replace(event, finish_reason=event.finish_reason if cut else called, tool_calls=reply.calls)
            else:
                yield event


async def read_template_reply(
    events: AsyncGenerator[GenerationEvent], tools: Sequence[Mapping[str, Any]]
) -> AsyncGenerator[GenerationEvent]:
    """Pass a reply on whose calls the server parsed, unless it calls what the job does not offer.

    Nothing made the model call well, so what it called is looked at; the arguments of a reply that was cut may be cut.

    Raises:
        ToolViolationError: A call is of no function offered, or its arguments are no JSON object.
    """
    offered = {name for tool in tools if isinstance(name := _name_of(tool), str)}
    async with aclosing(events):
        async for event in events:
            if isinstance(event, GenerationFinished):
                cut = event.finish_reason is ChatFinishReason.LENGTH
                for call in event.tool_calls:
                    _check_call(call, offered, cut=cut)
            yield event


def _name_of(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _check_call(call: ToolCall, offered: set[str], *, cut: bool) -> None:
    if call.name not in offered:
        raise ToolViolationError("The reply calls what is not offered.")
    if cut:
        return
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError as error:
        raise ToolViolationError("The arguments of a call are no JSON.") from error
    if not isinstance(arguments, dict):
        raise ToolViolationError("The arguments of a call are no object.")
