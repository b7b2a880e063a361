"""What one admitted request did, and the one line that says so when it ends (rules LOG)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loguru import logger

from horde.oai.errors import ChatFrontError
from horde.oai.metrics import FrontMetrics
from horde.oai.native_status import NativeStatus

__all__ = ["CLIENT_CLOSED", "RequestTrace"]

CLIENT_CLOSED = "client_closed"
"""The code of a request whose client left before delivery."""

_CLIENT_CLOSED_STATUS = 499


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _one_line(text: str | None) -> str | None:
    """Keep a text of the client's or the Horde's from breaking the line or forging another."""
    if text is None:
        return None
    return "".join(character if character.isprintable() and character != " " else "?" for character in text)


@dataclass(slots=True)
class RequestTrace:
    """The measurements of one admitted request; :meth:`finish` records and logs them once.

    Attributes:
        metrics: Where they are recorded.
        streamed: Whether the client asked for a stream.
        requested_models: The models the request accepts.
        fail_fast: Whether the first read decides availability too.
        clock: Monotonic seconds.
        wall: Unix seconds.
        arrived: Reading of ``clock`` at the request's arrival, before its body was read; now when not given.
    """

    metrics: FrontMetrics
    streamed: bool
    requested_models: tuple[str, ...]
    fail_fast: bool
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    arrived: float | None = None
    request_id: str | None = None
    submitted_at: float | None = None
    woke_at: float | None = None
    woke_by: str | None = None
    headers_sent: bool = False
    status_code: int = _CLIENT_CLOSED_STATUS
    code: str = CLIENT_CLOSED
    wake_count: int = 0
    done_without_generation_reads: int = 0
    estimated_usage: bool | None = None
    served_model: str | None = None
    retry_after: int | None = None
    queue_reason: str | None = None
    deciding_read: tuple[float | None, int | None] | None = None
    first_read: tuple[float | None, int | None] = (None, None)
    _arrived: float = field(init=False)
    _submitted: float | None = field(init=False, default=None)
    _content_sent: bool = field(init=False, default=False)
    _finished: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._arrived = self.clock() if self.arrived is None else self.arrived
        self.metrics.request_admitted(streamed=self.streamed)

    def submitted(self, request_id: str) -> None:
        """The Horde acknowledged the submit."""
        self.request_id = request_id
        self.submitted_at = self.wall()
        self._submitted = self.clock()

    def read(self, source: str, status: NativeStatus | None) -> None:
        """A status was read because of ``source``; None when the read brought nothing."""
        self.wake_count += 1
        finished = status is not None and status.done and (status.replied or status.faulted)
        empty = status is not None and status.done_without_generation
        self.done_without_generation_reads += empty
        if finished:
            self.woke_at, self.woke_by = self.wall(), source
        self.metrics.wake(source, finished=finished, done_without_generation=empty)

    def decided(self, status: NativeStatus) -> None:
        """The read that took the first-read decision of a ``fail_fast`` request (LOG-26)."""
        if self.fail_fast:
            self.first_read = (status.wait_time, status.threads)

    def refused_by_queue(self, wait_time: float | None, threads: int | None) -> None:
        """The first-read decision refused: what the deciding read said (LOG-24 to LOG-27)."""
        self.deciding_read = self.first_read = (wait_time, threads)

    def disconnected(self) -> None:
        """The client left before delivery: a wake without a read (CAN-2)."""
        self.woke_by = "disconnect"
        self.metrics.wake("disconnect", finished=False, done_without_generation=False)

    def opened(self) -> None:
        """A stream's headers went out: its status is 200 from now on (STR-4)."""
        self.headers_sent = True
        self.status_code = 200

    def content_sent(self, *, relayed: bool) -> None:
        """Content went out; the first time is measured."""
        if self._content_sent or self._submitted is None:
            return
        self._content_sent = True
        self.metrics.first_content(self.clock() - self._submitted, streamed=self.streamed, relayed=relayed)
        if relayed:
            self.metrics.stream_relayed()

    def delivered(self, completion: dict[str, Any]) -> None:
        """The reply went out whole."""
        details = completion["x_horde"]
        self.status_code, self.code = 200, "ok"
        self.served_model, self.estimated_usage = completion["model"], details["estimated_usage"]
        self.metrics.completion_delivered(
            completion["model"],
            estimated_usage=details["estimated_usage"],
            empty="notice" in details,
            queue_wait_seconds=details["queue_wait_seconds"],
        )

    def failed(self, error: ChatFrontError) -> None:
        """The client got an error, as a status or as an event."""
        self.code, self.retry_after = error.code, error.retry_after
        if error.reason:
            self.queue_reason = error.reason
        if self.headers_sent:
            self.metrics.stream_failed(error.code)
            return
        self.status_code = error.status
        self.metrics.request_failed(error.status, error.code, streamed=self.streamed, reason=error.reason)

    def finish(self) -> None:
        """Record the request's end and log its one line; further calls do nothing."""
        if self._finished:
            return
        self._finished = True
        self.metrics.request_ended(self.clock() - self._arrived, self.status_code, self.code, streamed=self.streamed)
        fields = self._fields()
        logger.bind(**fields).info("{}", self._message(fields))

    def _waited(self) -> float | None:
        if self.submitted_at is None:
            return None
        return round((self.woke_at if self.woke_at is not None else self.wall()) - self.submitted_at, 3)

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "request_id": _one_line(self.request_id),
            "streamed": self.streamed,
            "submitted_at": None if self.submitted_at is None else round(self.submitted_at, 3),
            "woke_at": None if self.woke_at is None else round(self.woke_at, 3),
            "woke_by": self.woke_by,
            "waited_seconds": self._waited(),
            "status_code": self.status_code,
            "code": _one_line(self.code),
            "wake_count": self.wake_count,
            "estimated_usage": self.estimated_usage,
            "done_without_generation_reads": self.done_without_generation_reads,
            "requested_model": _one_line(",".join(self.requested_models)),
            "served_model": _one_line(self.served_model),
            "retry_after": self.retry_after,
        }
        if self.queue_reason is not None:
            wait_time, threads = self.deciding_read or (None, None)
            fields |= {"queue_reason": self.queue_reason, "wait_time": wait_time, "eligible_worker_threads": threads}
        wait_time, threads = self.first_read
        return fields | {"first_read_wait_time": wait_time, "first_read_eligible_worker_threads": threads}

    def _message(self, fields: dict[str, Any]) -> str:
        head = "Unsubmitted chat request finished:"
        if self.request_id is not None:
            head = f"Chat request {fields['request_id']} finished:"
        line = (
            f"{head} streamed={self.streamed} submitted_at={_shown(fields['submitted_at'])}"
            f" woke_at={_shown(fields['woke_at'])} woke_by={self.woke_by} waited={_shown(fields['waited_seconds'])}s"
            f" status={self.status_code} code={fields['code']} wakes={self.wake_count}"
            f" estimated_usage={self.estimated_usage}"
            f" done_without_generation_reads={self.done_without_generation_reads}"
            f" requested_model={fields['requested_model']} served_model={_shown(fields['served_model'])}"
            f" retry_after={_shown(self.retry_after)}"
        )
        names = ("queue_reason", "wait_time", "eligible_worker_threads") if self.queue_reason is not None else ()
        for name in (*names, "first_read_wait_time", "first_read_eligible_worker_threads"):
            line += f" {name}={_shown(fields[name])}"
        return line
