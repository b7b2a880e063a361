"""Ollama's own chat route: a conversation in its words, and its lines as the worker's events. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from horde.worker.backends.base import GenerationEvent
from horde.worker.backends.reply_chunks import ReplyAssembler, parse_object

__all__ = ["OllamaReplyAssembler", "ollama_messages"]


def ollama_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation as Ollama takes it: one text a message, pictures beside it, arguments as objects.

    Args:
        messages: In OpenAI's words; pictures as data URLs.
    """
    return [_message(message) for message in messages]


class OllamaReplyAssembler:
    """Turns one reply's lines into events, by way of OpenAI's chunks.

    Args:
        starts_inside: The prompt opened a block of thinking, so that the reply begins within it.
    """

    def __init__(self, *, starts_inside: bool = False) -> None:
        self._chunks = ReplyAssembler(starts_inside=starts_inside)
        self._calls = 0

    @property
    def ended(self) -> bool:
        """Whether the server said why the reply ended."""
        return self._chunks.ended

    def feed(self, line: bytes) -> Iterator[GenerationEvent]:
        """Take one line and yield the deltas in it.

        Raises:
            BackendError: It is an error, or no object at all.
        """
        chunk = parse_object(line)
        if chunk.get("error"):
            yield from self._chunks.feed(orjson.dumps({"error": {"type": "api_error"}}))
            return
        message = chunk.get("message")
        told: Mapping[str, Any] = message if isinstance(message, dict) else {}
        delta = {"content": told.get("content"), "reasoning": told.get("thinking"), "tool_calls": self._read(told)}
        done = chunk.get("done") is True
        choice = {"delta": delta, "finish_reason": (chunk.get("done_reason") or "stop") if done else None}
        usage = {"prompt_tokens": chunk.get("prompt_eval_count"), "completion_tokens": chunk.get("eval_count")}
        yield from self._chunks.feed(orjson.dumps({"choices": [choice], "usage": usage if done else None}))

    def finish(self) -> Iterator[GenerationEvent]:
        """End the reply: yield what was held back, then the end itself."""
        yield from self._chunks.finish()

    def _read(self, message: Mapping[str, Any]) -> list[Any]:
        """Return whole calls as OpenAI's parts of calls, numbered across the lines."""
        calls = message.get("tool_calls")
        read = []
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            arguments = orjson.dumps(function.get("arguments") or {}).decode()
            call_id = call.get("id") or f"call_{self._calls}"
            named = {"name": function.get("name"), "arguments": arguments}
            read.append({"index": self._calls, "id": call_id, "function": named})
            self._calls += 1
        return read


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    pictures = [_picture(part) for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]
    text = content if isinstance(content, str) else "\n".join(texts)
    told: dict[str, Any] = {"role": message.get("role"), "content": text}
    if pictures:
        told["images"] = pictures
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        told["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
    return told


def _picture(part: Mapping[str, Any]) -> str:
    """Return what is behind the comma of a data URL, which is how Ollama wants a picture."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    return str(url).partition(",")[2]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    told: Mapping[str, Any] = function if isinstance(function, Mapping) else {}
    arguments = told.get("arguments")
    try:
        document = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        document = {}
    return {"function": {"name": told.get("name"), "arguments": document if isinstance(document, dict) else {}}}
