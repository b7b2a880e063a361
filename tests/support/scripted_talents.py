"""What a scripted model server does when a worker probes it: each talent is had, or not, as a test wants."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from PIL import Image

from horde.worker.backends.probes import (
    CALL_QUESTION,
    PICTURE_QUESTION,
    PROBE_QUESTIONS,
    REPEAT_QUESTION,
    THINKING_QUESTION,
)

__all__ = ["ProbeReply", "Talents", "asks_probe", "probe_document"]

_SAYING = "The sea is wide."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """What answers a probe.

    Attributes:
        text: The content.
        reasoning: The reasoning, in a field of its own.
        call: The content is a call of ``probe`` instead, parsed by the server.
        finish_reason: Why it ended.
    """

    text: str = ""
    reasoning: str = ""
    call: bool = False
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Talents:
    """What it can do.

    Attributes:
        grammar: What it does with a schema: ``enforces`` it, ``ignores`` it or ``refuses`` it with 400.
        parses_calls: It has tools of its own, and its model calls when asked to.
        thinks: When its model thinks: unless told not to, whatever it is told, or never.
        opens_thinking: Its template opens the thinking, and the server leaves the block in the content.
        overthinks: It never comes to an answer of its own accord; only a budget closes the thinking.
        sees: Its model reads pictures.
        samples: It applies seed and penalties.
    """

    grammar: Literal["enforces", "ignores", "refuses"] = "ignores"
    parses_calls: bool = False
    thinks: Literal["never", "as told", "always"] = "never"
    opens_thinking: bool = False
    overthinks: bool = False
    sees: bool = False
    samples: bool = False

    def answer(self, body: Mapping[str, Any]) -> ProbeReply | None:
        """Return the answer to a probe; None refuses it."""
        schema = _schema_of(body)
        if schema is not None and self.grammar == "refuses":
            return None
        if schema is not None and self.grammar == "enforces":
            return ProbeReply(text=_document_of(schema))
        question = _question(body)
        if question == THINKING_QUESTION:
            return self._think(body)
        if question == CALL_QUESTION and self.parses_calls and body.get("tools"):
            return ProbeReply(call=True, finish_reason="tool_calls")
        if question == PICTURE_QUESTION:
            return ProbeReply(text=_colour(body).capitalize() if self.sees else "Red.")
        asked = _penalised(body) if question == REPEAT_QUESTION else _seeded(body)
        return ProbeReply(text=f"{_SAYING} {asked}" if self.samples else _SAYING)

    def _think(self, body: Mapping[str, Any]) -> ProbeReply:
        thinks = self.thinks == "always" or (self.thinks == "as told" and _may_think(body))
        if not thinks:
            return ProbeReply(text="42")
        if self.overthinks and not _has_budget(body):
            return ProbeReply(reasoning="Seventeen, and then", finish_reason="length")
        if self.opens_thinking:
            return ProbeReply(text="Seventeen and so on.\n</think>\n42")
        return ProbeReply(text="42", reasoning="Seventeen and so on.")


def asks_probe(body: Mapping[str, Any]) -> bool:
    """Whether a body is a worker's question of its own, not a job."""
    return _question(body) in PROBE_QUESTIONS


def probe_document() -> str:
    """Return the document that every probe wants."""
    return '{"value":"probed"}'


def _question(body: Mapping[str, Any]) -> object:
    messages = body.get("messages") or [{}]
    content = messages[-1].get("content")
    if isinstance(content, list):
        return next((part["text"] for part in content if part.get("type") == "text"), None)
    return content


def _schema_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that the reply has to satisfy, wherever this kind of server looks for it."""
    asked = body.get("response_format")
    schema = asked["json_schema"]["schema"] if asked else body.get("json_schema") or body.get("format")
    assert schema is None or isinstance(schema, Mapping)
    return schema


def _document_of(schema: Mapping[str, Any]) -> str:
    call = {"name": "probe", "arguments": orjson.loads(probe_document())}
    return orjson.dumps(call).decode() if "arguments" in schema["properties"] else probe_document()


def _may_think(body: Mapping[str, Any]) -> bool:
    told = [body.get("think"), body.get("chat_template_kwargs", {}).get("enable_thinking")]
    return body.get("reasoning_effort") != "none" and False not in told


def _has_budget(body: Mapping[str, Any]) -> bool:
    return any(key.endswith(("budget", "budget_tokens")) for key in body)


def _colour(body: Mapping[str, Any]) -> str:
    message = body["messages"][-1]
    pictures = message.get("images") or [
        part["image_url"]["url"].partition(",")[2] for part in message["content"] if part["type"] == "image_url"
    ]
    picture = Image.open(io.BytesIO(base64.b64decode(pictures[0]))).convert("RGB")
    pixel = picture.getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return "red" if pixel[0] > pixel[2] else "blue"


def _seeded(body: Mapping[str, Any]) -> object:
    return body.get("seed", body.get("options", {}).get("seed"))


def _penalised(body: Mapping[str, Any]) -> object:
    return body.get("presence_penalty"), body.get("frequency_penalty")
