"""The chunks of an OpenAI-compatible stream as the worker's events. Pure; trusts no type it was sent."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from horde_sdk.worker.chat_declaration import ChatFinishReason, ChatUsage

from horde.worker.backends.base import (
    BackendError,
    GenerationEvent,
    GenerationFinished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
)
from horde.worker.thinking import ThinkPiece, ThinkSplitter

__all__ = ["MAX_NATIVE_FINISH_REASON_CHARACTERS", "ReplyAssembler", "parse_object"]

MAX_NATIVE_FINISH_REASON_CHARACTERS: Final = 32
"""The Horde takes no more of a backend's own finish reason (WRK-8)."""

_MAX_TOOL_CALLS: Final = 128

_FINISH_REASONS: Final = {
    "length": ChatFinishReason.LENGTH,
    "max_tokens": ChatFinishReason.LENGTH,
    "content_filter": ChatFinishReason.CONTENT_FILTER,
    "tool_calls": ChatFinishReason.TOOL_CALLS,
    "function_call": ChatFinishReason.TOOL_CALLS,
}
"""Anything else means that the model came to an end by itself."""

_REASONING_KEYS: Final = ("reasoning_content", "reasoning")
"""llama.cpp and vLLM; OpenRouter-like servers."""


@dataclass(slots=True)
class _PartialToolCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyAssembler:
    """Turns one reply's chunks into events.

    Args:
        split_thinking: Split a ``<think>`` block off the content; a server that sends reasoning in a field of its
            own ends this by doing so.
        starts_inside: The prompt opened the block, so that the reply begins within it.
    """

    def __init__(self, *, split_thinking: bool = True, starts_inside: bool = False) -> None:
        self._splitter = ThinkSplitter(starts_inside=starts_inside) if split_thinking else None
        self._native_finish_reason: str | None = None
        self._usage = ChatUsage()
        self._tool_calls: dict[int, _PartialToolCall] = {}

    @property
    def ended(self) -> bool:
        """Whether the server said why the reply ended; a stream that stops before that was cut."""
        return self._native_finish_reason is not None

    def feed(self, data: bytes) -> Iterator[GenerationEvent]:
        """Take the data of one server-sent event and yield the deltas in it.

        Raises:
            BackendError: It is an error, or not a chunk at all.
        """
        chunk = parse_object(data)
        if chunk.get("error"):
            raise BackendError(f"The model server reported an error while generating: {_error_kind(chunk['error'])}.")
        self._read_usage(chunk.get("usage"))
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        choice = choices[0]
        if not isinstance(choice, dict):
            raise BackendError("The model server sent a choice that is no object.")
        delta = choice.get("delta")
        if isinstance(delta, dict):
            yield from self._read_delta(delta)
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str):
            self._native_finish_reason = finish_reason

    def finish(self) -> Iterator[GenerationEvent]:
        """End the reply: yield what was held back, then the end itself.

        Raises:
            BackendError: A tool call has no name.
        """
        if self._splitter is not None:
            yield from _events(self._splitter.finish())
        native = self._native_finish_reason
        calls = tuple(_whole_call(index, call) for index, call in sorted(self._tool_calls.items()))
        reason = _FINISH_REASONS.get(native or "", ChatFinishReason.STOP)
        if calls and reason is ChatFinishReason.STOP:
            reason = ChatFinishReason.TOOL_CALLS
        elif reason is ChatFinishReason.TOOL_CALLS and not calls:
            reason = ChatFinishReason.STOP
        yield GenerationFinished(
            finish_reason=reason,
            native_finish_reason=None if native is None else native[:MAX_NATIVE_FINISH_REASON_CHARACTERS],
            usage=self._usage,
            tool_calls=calls,
        )

    def _read_delta(self, delta: dict[str, Any]) -> Iterator[GenerationEvent]:
        for key in _REASONING_KEYS:
            reasoning = delta.get(key)
            if isinstance(reasoning, str) and reasoning:
                if self._splitter is not None:
                    yield from _events(self._splitter.finish())
                    self._splitter = None
                yield ReasoningDelta(reasoning)
                break
        content = delta.get("content")
        if isinstance(content, str) and content:
            yield from self._read_content(content)
        tool_calls = delta.get("tool_calls")
        if isinstance(tool_calls, list):
            for position, call in enumerate(tool_calls):
                self._read_tool_call(position, call)

    def _read_content(self, content: str) -> Iterator[GenerationEvent]:
        if self._splitter is None:
            yield TextDelta(content)
        else:
            yield from _events(self._splitter.feed(content))

    def _read_tool_call(self, position: int, call: object) -> None:
        if not isinstance(call, dict):
            raise BackendError("The model server sent a tool call that is no object.")
        index = call.get("index")
        partial = self._tool_calls.setdefault(index if isinstance(index, int) else position, _PartialToolCall())
        if len(self._tool_calls) > _MAX_TOOL_CALLS:
            raise BackendError("The model made more tool calls than the Horde takes.")
        function = call.get("function")
        fields = function if isinstance(function, dict) else {}
        if isinstance(call.get("id"), str) and call["id"]:
            partial.id = call["id"]
        if isinstance(fields.get("name"), str) and fields["name"]:
            partial.name = fields["name"]
        if isinstance(fields.get("arguments"), str):
            partial.arguments.append(fields["arguments"])

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("completion_tokens_details")
        self._usage = ChatUsage(
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            reasoning_tokens=_count(details.get("reasoning_tokens")) if isinstance(details, dict) else None,
        )


def _events(piece: ThinkPiece) -> Iterator[GenerationEvent]:
    if piece.reasoning:
        yield ReasoningDelta(piece.reasoning)
    if piece.content:
        yield TextDelta(piece.content)


def _count(value: object) -> int | None:
    """Return a token count, or None for anything that is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        return None
    return value


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a server sent.

    Raises:
        BackendError: It sent something else.
    """
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BackendError("The model server sent a chunk that is not JSON.") from error
    if not isinstance(chunk, dict):
        raise BackendError("The model server sent a chunk that is no object.")
    return chunk


def _error_kind(error: object) -> str:
    """Return the kind of a backend's error; its message may quote the prompt, so it is never repeated."""
    kind = error.get("type") if isinstance(error, dict) else None
    return kind[:64] if isinstance(kind, str) and kind else "of no stated kind"


def _whole_call(index: int, call: _PartialToolCall) -> ToolCall:
    if not call.name:
        raise BackendError("The model server sent a tool call without a function's name.")
    return ToolCall(call.id or f"call_{index}", call.name, "".join(call.arguments) or "{}")
