"""A native status as the front reads it, from any Horde that speaks the contract.

Values of the wrong type are read as absent: a Horde is another program, perhaps another version, and one odd field must
not cost a client its reply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Fault", "Generation", "ImpossibleReason", "NativeStatus"]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _strings(value: object) -> tuple[str, ...]:
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True)
class ImpossibleReason:
    """Why no online worker may serve a request, as far as the Horde says (NAT-4).

    Attributes:
        kind: The cause; only ``declaration_gap`` is known.
        missing_declarations: Features and guarantees nobody declares.
        exceeded_limits: Limits the request is over for everybody.
    """

    kind: str
    missing_declarations: tuple[str, ...]
    exceeded_limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request faulted: the native return code and the Horde's own sentence (NAT-12)."""

    rc: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation, the reply.

    Attributes:
        id: The job's id, which is the ``gen`` of its stream entries.
        content: The text, None when the worker returned calls alone.
        tool_calls: The calls as the worker sent them.
        reasoning: The model's reasoning, None when none was submitted.
        kudos: The price charged.
        queue_wait_seconds: From the request's creation to its assignment.
        prompt_tokens: As the worker counted, None when it did not; the other counts likewise.
    """

    id: str | None
    content: str | None
    tool_calls: tuple[Mapping[str, Any], ...]
    reasoning: str | None
    finish_reason: str | None
    native_finish_reason: str | None
    model: str | None
    worker_id: str | None
    worker_name: str | None
    kudos: float | None
    queue_wait_seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "Generation | None":
        """Read one entry of ``generations``; None when it holds no message."""
        message = body.get("message")
        if not isinstance(message, Mapping):
            return None
        calls = message.get("tool_calls")
        return cls(
            id=_text(body.get("id")),
            content=_text(message.get("content")),
            tool_calls=tuple(call for call in calls if _is_call(call)) if isinstance(calls, list) else (),
            reasoning=_text(message.get("reasoning_content")),
            finish_reason=_text(body.get("finish_reason")),
            native_finish_reason=_text(body.get("native_finish_reason")),
            model=_text(body.get("model")) or None,
            worker_id=_text(body.get("worker_id")) or None,
            worker_name=_text(body.get("worker_name")) or None,
            kudos=_number(body.get("kudos")),
            queue_wait_seconds=_number(body.get("queue_wait_seconds")),
            prompt_tokens=_count(body.get("prompt_tokens")),
            completion_tokens=_count(body.get("completion_tokens")),
            reasoning_tokens=_count(body.get("reasoning_tokens")),
        )


def _is_call(call: object) -> bool:
    if not isinstance(call, Mapping) or not isinstance(call.get("id"), str):
        return False
    function = call.get("function")
    return isinstance(function, Mapping) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """One status read.

    Attributes:
        done: Nothing further will happen.
        faulted: It ended without a reply, by fault or expiry.
        possible: A worker holds it or may take it.
        waiting: Jobs queued; ``processing`` and ``finished`` likewise.
        queue_position: Place in the queue, 0 when unknown.
        wait_time: Estimated seconds, None when not reported.
        threads: Eligible worker threads, None when not reported (FFA-9).
        adjustments: The Horde's list, passed through unchanged (RES-11).
    """

    done: bool
    faulted: bool
    possible: bool
    waiting: int
    processing: int
    finished: int
    queue_position: int
    wait_time: float | None
    threads: int | None
    impossible: ImpossibleReason | None
    adjustments: list[Any] | None
    fault: Fault | None
    generation: Generation | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "NativeStatus":
        """Read a status body."""
        generations = body.get("generations")
        first = generations[0] if isinstance(generations, list) and generations else None
        adjustments = body.get("context_adjustments")
        fault = body.get("fault")
        return cls(
            done=body.get("done") is True,
            faulted=body.get("faulted") is True,
            possible=body.get("is_possible") is not False,
            waiting=_count(body.get("waiting")) or 0,
            processing=_count(body.get("processing")) or 0,
            finished=_count(body.get("finished")) or 0,
            queue_position=_count(body.get("queue_position")) or 0,
            wait_time=_number(body.get("wait_time")),
            threads=_count(body.get("eligible_worker_threads")),
            impossible=_read_reason(body.get("impossible_reason")),
            adjustments=adjustments if isinstance(adjustments, list) and adjustments else None,
            fault=Fault(_text(fault.get("rc")), _text(fault.get("message"))) if isinstance(fault, Mapping) else None,
            generation=Generation.read(first) if isinstance(first, Mapping) else None,
        )

    @property
    def replied(self) -> bool:
        """Whether the reply is there."""
        return self.done and not self.faulted and self.generation is not None

    @property
    def done_without_generation(self) -> bool:
        """Whether it claims to be done and shows no reply (DWG-1)."""
        return self.done and not self.faulted and self.generation is None

    @property
    def has_queue_information(self) -> bool:
        """Whether the read says anything of the queue (FFA-10)."""
        return bool(self.queue_position or self.wait_time or self.processing or self.finished)


def _read_reason(value: object) -> ImpossibleReason | None:
    if not isinstance(value, Mapping) or not isinstance(kind := value.get("kind"), str):
        return None
    return ImpossibleReason(kind, _strings(value.get("missing_declarations")), _strings(value.get("exceeded_limits")))
