"""Questions that prove what a model server does: each asks for what no model says by itself (WRK-7)."""

import base64
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import orjson
from horde_sdk.generation_parameters.text.chat_limits import CHAT_SAMPLING_DEFAULTS
from horde_sdk.worker.chat_declaration import ChatJobPayload
from PIL import Image

from horde.worker.backends.base import (
    BackendError,
    BackendUnavailableError,
    GenerationEvent,
    GenerationFinished,
    ReasoningDelta,
    TextDelta,
)

__all__ = [
    "CALL_QUESTION",
    "PICTURE_QUESTION",
    "PROBE_QUESTION",
    "PROBE_QUESTIONS",
    "PROBE_TOKENS",
    "REPEAT_QUESTION",
    "THINKING_QUESTION",
    "THINKING_TOKENS",
    "Generate",
    "Thinking",
    "applies_penalty",
    "calls_by_template",
    "enforces_schema",
    "forces_calls",
    "honours_seed",
    "reads_pictures",
    "try_thinking",
]

PROBE_QUESTION: Final = "Tell me about the sea."
"""What no probe that asks it wants to be answered."""

THINKING_QUESTION: Final = "Think: how much is seventeen and twenty-five? Answer with the number alone."
"""Short to answer, and worth a thought."""

CALL_QUESTION: Final = 'Call the function probe with the value "probed".'
PICTURE_QUESTION: Final = "Which colour fills this picture: red, green or blue? Answer with that word alone."
REPEAT_QUESTION: Final = "Repeat the word sea twenty times: sea sea sea sea"

PROBE_QUESTIONS: Final = frozenset(
    {PROBE_QUESTION, THINKING_QUESTION, CALL_QUESTION, PICTURE_QUESTION, REPEAT_QUESTION}
)

PROBE_TOKENS: Final = 64
_SAMPLED_TOKENS: Final = 24
THINKING_TOKENS: Final = 512
"""Enough to think about an easy question and to answer it."""

_VALUE: Final = {"type": "string", "enum": ["probed"]}
_DOCUMENT: Final = {
    "type": "object",
    "properties": {"value": _VALUE},
    "required": ["value"],
    "additionalProperties": False,
}
_TOOL: Final = {"type": "function", "function": {"name": "probe", "parameters": _DOCUMENT}}

_COLOURS: Final = {"red": (255, 0, 0), "blue": (0, 0, 255)}
_PICTURE_PIXELS: Final = 64
_UNCOUNTED_PICTURE_TOKENS: Final = 1024
"""What the Horde takes a picture for (decision U36), where the server does not count."""

_CLOSE_TAG: Final = "</think>"

type Generate = Callable[[ChatJobPayload], AsyncGenerator[GenerationEvent]]


@dataclass(frozen=True, slots=True)
class Thinking:
    """What came of a question worth a thought.

    Attributes:
        thought: Reasoning came.
        answered: Content came after it.
        opened_by_template: The content closes a thinking that it did not open: the prompt did.
    """

    thought: bool
    answered: bool
    opened_by_template: bool = False


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    reasoning: str
    finished: GenerationFinished


def _job(content: object = PROBE_QUESTION, **asked: object) -> ChatJobPayload:
    payload = {
        **CHAT_SAMPLING_DEFAULTS,
        "temperature": 0.0,
        "messages": [{"role": "user", "content": content}],
        "max_length": PROBE_TOKENS,
        "max_context_length": 2**31,
        **asked,
    }
    return ChatJobPayload.from_pop({"chat": True, "payload": payload})


async def enforces_schema(generate: Generate, *, effort: str | None = None, tokens: int = PROBE_TOKENS) -> bool:
    """Whether a strict schema holds a reply.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.
        effort: The effort that jobs carry, if they do.
        tokens: Longest reply.

    Raises:
        BackendUnavailableError: The server went away.
    """
    schema = {"name": "probe", "strict": True, "schema": _DOCUMENT}
    asked = {"type": "json_schema", "json_schema": schema}
    reply = await _reply_to(generate, _job(response_format=asked, reasoning_effort=effort, max_length=tokens))
    return reply is not None and _is_probed(reply.text)


async def forces_calls(generate: Generate, *, effort: str | None = None, tokens: int = PROBE_TOKENS) -> bool:
    """Whether a forced call comes, of the function asked for and with the arguments that it takes.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.
        effort: The effort that jobs carry, if they do.
        tokens: Longest reply.

    Raises:
        BackendUnavailableError: The server went away.
    """
    return _calls_probe(
        await _reply_to(
            generate, _job(tools=[_TOOL], tool_choice="required", reasoning_effort=effort, max_length=tokens)
        )
    )


async def calls_by_template(generate: Generate, *, effort: str | None = None, tokens: int = PROBE_TOKENS) -> bool:
    """Whether the server parses a call that the model was asked for and left free to make.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.
        effort: The effort that jobs carry, if they do.
        tokens: Longest reply.

    Raises:
        BackendUnavailableError: The server went away.
    """
    return _calls_probe(
        await _reply_to(generate, _job(CALL_QUESTION, tools=[_TOOL], reasoning_effort=effort, max_length=tokens))
    )


async def reads_pictures(generate: Generate, *, effort: str | None = None, tokens: int = PROBE_TOKENS) -> int | None:
    """Find out whether the model tells a red picture from a blue one; whoever sees neither answers both alike.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.
        effort: The effort that jobs carry, if they do.
        tokens: Longest reply.

    Returns:
        The tokens that such a picture took with its question; None when it is not read.

    Raises:
        BackendUnavailableError: The server went away.
    """
    taken = 0
    for colour in _COLOURS:
        parts = [
            {"type": "image_url", "image_url": {"url": _picture(colour)}},
            {"type": "text", "text": PICTURE_QUESTION},
        ]
        reply = await _reply_to(generate, _job(parts, reasoning_effort=effort, max_length=tokens))
        if reply is None or [name for name in _COLOURS if name in reply.text.lower()] != [colour]:
            return None
        taken = max(taken, reply.finished.usage.prompt_tokens or _UNCOUNTED_PICTURE_TOKENS)
    return taken


async def honours_seed(generate: Generate) -> bool:
    """Whether one seed gives one text at a temperature at which another gives another.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.

    Raises:
        BackendUnavailableError: The server went away.
    """
    replies = [
        await _reply_to(generate, _job(temperature=1.0, seed=seed, max_length=_SAMPLED_TOKENS)) for seed in (7, 7, 8)
    ]
    texts = [reply.text + reply.reasoning for reply in replies if reply is not None]
    return len(texts) == len(replies) and texts[0] == texts[1] != texts[2]


async def applies_penalty(generate: Generate, penalty: str) -> bool:
    """Whether a penalty changes what the model repeats when nothing is left to chance.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.
        penalty: The sampling value's name.

    Raises:
        BackendUnavailableError: The server went away.
    """
    replies = [
        await _reply_to(generate, _job(REPEAT_QUESTION, max_length=_SAMPLED_TOKENS, **{penalty: value}))
        for value in (0.0, 0.0, 2.0)
    ]
    texts = [reply.text + reply.reasoning for reply in replies if reply is not None]
    return len(texts) == len(replies) and texts[0] == texts[1] != texts[2]


async def try_thinking(generate: Generate, *, effort: str | None) -> Thinking | None:
    """Ask what is worth a thought; None when the server refuses to answer.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.
        effort: The effort to ask with.

    Raises:
        BackendUnavailableError: The server went away.
    """
    reply = await _reply_to(generate, _job(THINKING_QUESTION, max_length=THINKING_TOKENS, reasoning_effort=effort))
    if reply is None:
        return None
    before, tag, after = reply.text.partition(_CLOSE_TAG)
    if tag:
        return Thinking(thought=bool(before.strip()), answered=bool(after.strip()), opened_by_template=True)
    return Thinking(thought=bool(reply.reasoning.strip()), answered=bool(reply.text.strip()))


async def _reply_to(generate: Generate, job: ChatJobPayload) -> _Reply | None:
    """Return the whole reply; None when the server refuses to make one."""
    text = reasoning = ""
    try:
        async with aclosing(generate(job)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        text += event.text
                    case ReasoningDelta():
                        reasoning += event.text
                    case GenerationFinished():
                        return _Reply(text, reasoning, event)
    except BackendUnavailableError:
        raise
    except BackendError:
        return None
    return None


def _calls_probe(reply: _Reply | None) -> bool:
    calls = () if reply is None else reply.finished.tool_calls
    return [call.name for call in calls] == ["probe"] and _is_probed(calls[0].arguments)


def _is_probed(text: str) -> bool:
    try:
        document: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return bool(document == {"value": "probed"})


def _picture(colour: str) -> str:
    """Return a picture of one colour as a data URL, in the form in which the Horde hands pictures out."""
    data = io.BytesIO()
    Image.new("RGB", (_PICTURE_PIXELS, _PICTURE_PIXELS), _COLOURS[colour]).save(data, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
