"""Events of a stream as bytes; the only module that knows ``data: `` (STR, ADR 0034)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

__all__ = [
    "DONE_EVENT",
    "ChunkHead",
    "build_completion_events",
    "build_delta_events",
    "build_error_events",
    "build_final_events",
    "build_keepalive_event",
    "build_role_event",
]

DONE_EVENT: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """What every chunk of a stream repeats (STR-18, RES-27).

    Attributes:
        id: The completion's id.
        created: Unix seconds.
        model: The model that serves, or the requested one until that is known.
        system_fingerprint: The same in every chunk, or None.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _chunk(head: ChunkHead, choices: list[dict[str, Any]], **more: object) -> bytes:
    return _event(
        {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.system_fingerprint,
            "choices": choices,
            **more,
        }
    )


def _delta(head: ChunkHead, delta: Mapping[str, Any]) -> bytes:
    return _chunk(head, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])


def build_role_event(head: ChunkHead) -> bytes:
    """Return the first chunk, whose delta holds only the role (STR-11, DEV-6)."""
    return _delta(head, {"role": "assistant"})


def build_delta_events(head: ChunkHead, *, reasoning: str = "", text: str = "") -> list[bytes]:
    """Return the chunks of one piece: reasoning before content, each only when there is some (DLT-17 to DLT-19).

    Args:
        head: The stream's head.
        reasoning: Reasoning to send, if any.
        text: Text to send, if any.
    """
    events = []
    if reasoning:
        events.append(_delta(head, {"reasoning_content": reasoning}))
    if text:
        events.append(_delta(head, {"content": text}))
    return events


def build_final_events(head: ChunkHead, completion: Mapping[str, Any], *, include_usage: bool) -> list[bytes]:
    """Return finish chunk, usage chunk when asked for, and the end (STR-15 to STR-17).

    Args:
        head: The stream's head; the served model is taken from the completion (STR-19).
        completion: The whole completion.
        include_usage: Whether the client asked for usage.
    """
    choice = completion["choices"][0]
    served = ChunkHead(head.id, head.created, completion["model"], head.system_fingerprint)
    finish = {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": choice["finish_reason"],
        "native_finish_reason": choice["native_finish_reason"],
    }
    events = [_chunk(served, [finish], x_horde=completion["x_horde"])]
    if include_usage:
        events.append(_chunk(served, [], usage=completion["usage"]))
    events.append(DONE_EVENT)
    return events


def build_completion_events(completion: Mapping[str, Any], *, include_usage: bool) -> list[bytes]:
    """Return a whole reply as a stream: role, reasoning, content, calls, finish, usage, end (STR-11 to STR-17).

    Args:
        completion: The whole completion.
        include_usage: Whether the client asked for usage.
    """
    head = ChunkHead(completion["id"], completion["created"], completion["model"], completion["system_fingerprint"])
    message = completion["choices"][0]["message"]
    events = [build_role_event(head)]
    events += build_delta_events(
        head, reasoning=message.get("reasoning_content") or "", text=message.get("content") or ""
    )
    if calls := message.get("tool_calls"):
        events.append(_delta(head, {"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}))
    return events + build_final_events(head, completion, include_usage=include_usage)


def build_error_events(envelope: Mapping[str, Any]) -> list[bytes]:
    """Return the one event that a failed stream ends with, and the end (STR-6).

    Args:
        envelope: The error's envelope, built for a stream.
    """
    return [_event(envelope), DONE_EVENT]


def build_keepalive_event(queue_position: int, wait_time: float | None) -> bytes:
    """Return a comment that keeps the connection alive and says where the request stands (STR-8).

    Args:
        queue_position: Place in the queue, 0 when unknown or being generated.
        wait_time: Estimated seconds to wait.
    """
    return b": horde queue_position=%d wait_time=%d\n\n" % (queue_position, round(wait_time or 0))
