"""Questions that prove what a model server enforces: each asks for what no model says by itself (WRK-7)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import orjson
from horde_sdk.generation_parameters.text.chat_limits import CHAT_SAMPLING_DEFAULTS
from horde_sdk.worker.chat_declaration import ChatJobPayload

from horde.worker.backends.base import (
    BackendError,
    BackendUnavailableError,
    GenerationEvent,
    GenerationFinished,
    TextDelta,
)

__all__ = ["PROBE_QUESTION", "enforces_schema", "forces_calls"]

PROBE_QUESTION: Final = "Tell me about the sea."
"""What every probe asks, and no probe wants to be answered."""

_TOKENS: Final = 64
_VALUE: Final = {"type": "string", "enum": ["probed"]}
_DOCUMENT: Final = {
    "type": "object",
    "properties": {"value": _VALUE},
    "required": ["value"],
    "additionalProperties": False,
}


type Generate = Callable[[ChatJobPayload], AsyncGenerator[GenerationEvent]]


def _job(**asked: object) -> ChatJobPayload:
    payload = {
        **CHAT_SAMPLING_DEFAULTS,
        "temperature": 0.0,
        "messages": [{"role": "user", "content": PROBE_QUESTION}],
        "max_length": _TOKENS,
        "max_context_length": 2**31,
        **asked,
    }
    return ChatJobPayload.from_pop({"chat": True, "payload": payload})


async def enforces_schema(generate: Generate) -> bool:
    """Whether a strict schema holds a reply.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.

    Raises:
        BackendUnavailableError: The server went away.
    """
    schema = {"name": "probe", "strict": True, "schema": _DOCUMENT}
    reply = await _reply_to(generate, _job(response_format={"type": "json_schema", "json_schema": schema}))
    return reply is not None and _is_probed(reply[0])


async def forces_calls(generate: Generate) -> bool:
    """Whether a forced call comes, of the function asked for and with the arguments that it takes.

    Args:
        generate: Generates the reply to a job, by the way that jobs take.

    Raises:
        BackendUnavailableError: The server went away.
    """
    function = {"name": "probe", "parameters": _DOCUMENT}
    reply = await _reply_to(generate, _job(tools=[{"type": "function", "function": function}], tool_choice="required"))
    calls = () if reply is None else reply[1].tool_calls
    return [call.name for call in calls] == ["probe"] and _is_probed(calls[0].arguments)


async def _reply_to(generate: Generate, job: ChatJobPayload) -> tuple[str, GenerationFinished] | None:
    text = ""
    try:
        async with aclosing(generate(job)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    text += event.text
                elif isinstance(event, GenerationFinished):
                    return text, event
    except BackendUnavailableError:
        raise
    except BackendError:
        return None
    return None


def _is_probed(text: str) -> bool:
    try:
        document: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return bool(document == {"value": "probed"})
