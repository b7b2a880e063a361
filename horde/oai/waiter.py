"""Waiting for one request: when its status is read, and what each read means (rules WAI, NEW, FFA, DWG).

A read is one native call, so there is one only when something may have changed that is not known yet: after the submit,
at a signal that does not say all, when a read left things unclear, at the poll and at the deadline. Signals and deltas
live in their own modules and are imported from here too.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from horde.oai.deltas import DeltaEntry, DeltaStreamReader, DeltaSubscription
from horde.oai.horde_client import HordeUnreachableError, NativeAnswer
from horde.oai.native_status import NativeStatus
from horde.oai.signals import CompletionSignalListener, SignalSubscription
from horde.oai.wait_errors import (
    DeclarationGapError,
    NoEligibleWorkerError,
    NoGenerationError,
    QueueUnavailableError,
    RequestFaultedError,
    StatusRefusedError,
    WaitTimeoutError,
)

__all__ = [
    "POSITIONED_READ_WAIT_SECONDS",
    "ChatRequestWatcher",
    "CompletionSignalListener",
    "DeclarationGapError",
    "DeltaEntry",
    "DeltaStreamReader",
    "DeltaSubscription",
    "NoEligibleWorkerError",
    "SignalSubscription",
    "WaitBudget",
    "WaitTiming",
    "WakeSource",
]

POSITIONED_READ_WAIT_SECONDS: Final = 2.0
"""How long a ``fail_fast`` request waits for a status that knows the queue, refreshed as often (FFA-11)."""

_MAX_POLL_SECONDS: Final = 5.0
_POLL_GROWTH: Final = 1.3
_DEADLINE_READ_SECONDS: Final = 2.0
"""Time for the last read, which happens when the budget is already spent."""

_FIRST_BACKOFF_SECONDS: Final = 0.5
_FINAL_REFUSALS: Final = frozenset({401, 404})
"""With a return code these say that this key will never see the request again; any other refusal may pass."""

_HTTP_OK: Final = 200
_DECLARATION_GAP: Final = "declaration_gap"


class WakeSource(StrEnum):
    """What caused a status read (MET-22)."""

    IMMEDIATE = "immediate"
    SIGNAL = "signal"
    RECHECK = "recheck"
    POLL = "poll"
    DEADLINE = "deadline"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class WaitBudget:
    """How long one request may wait, from its arrival.

    Attributes:
        deadline: Monotonic seconds at which it is over.
        clock: Monotonic seconds.
    """

    deadline: float
    clock: Callable[[], float] = time.monotonic

    @property
    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.deadline - self.clock())


@dataclass(frozen=True, slots=True)
class WaitTiming:
    """Intervals of a wait in seconds, from the settings.

    Attributes:
        recheck: After an unclear read (``signal_recheck_seconds``).
        poll: First interval without signals; it grows to 5 s, with jitter.
        signalled_poll: Interval while signals arrive.
        grace: For an eligible worker to appear (``fail_fast_grace_seconds``).
        call: Limit of one read.
    """

    recheck: float = 1.0
    poll: float = 2.0
    signalled_poll: float = 30.0
    grace: float = 15.0
    call: float = 10.0


def _is_final_refusal(answer: NativeAnswer) -> bool:
    return answer.status in _FINAL_REFUSALS and answer.rc is not None


class WaitObserver(Protocol):
    """Told of every read and of the first-read decision."""

    def read(self, source: str, status: NativeStatus | None) -> None:
        """A status was read, or the read brought nothing."""

    def decided(self, status: NativeStatus) -> None:
        """This read took the first-read decision."""


class ChatRequestWatcher:
    """Watches one request from its submit to its reply.

    Args:
        read_status: One native status read within a number of seconds.
        budget: The request's budget.
        timing: Intervals.
        signals: The request's signals, registered before the first read; None without Redis.
        signals_alive: Whether signals arrive at present.
        fail_fast: Whether availability is decided at the first read (FFA).
        observer: Told of every read.
        hurry: Whether to poll at the short interval although signals arrive: a relayed stream that stalls.
    """

    def __init__(  # noqa: PLR0913 - the collaborators of one wait
        self,
        read_status: Callable[[float], Awaitable[NativeAnswer]],
        *,
        budget: WaitBudget,
        timing: WaitTiming,
        observer: WaitObserver,
        signals: SignalSubscription | None = None,
        signals_alive: Callable[[], bool] = lambda: False,
        fail_fast: bool = False,
        hurry: Callable[[], bool] = lambda: False,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.0),  # noqa: S311 - spreads polls, no secret
    ) -> None:
        self._read_status = read_status
        self._budget = budget
        self._timing = timing
        self._observer = observer
        self._signals = signals
        self._signals_alive = signals_alive
        self._fail_fast = fail_fast
        self._hurry = hurry
        self._jitter = jitter
        self._poll_interval = timing.poll
        self._impossible_since: float | None = None
        self._empty_since: float | None = None
        self._failures = 0
        self._pause: float | None = None
        self.latest: NativeStatus | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called after each read and at each signal: a stream looks whether its job has started."""

    @property
    def started(self) -> bool:
        """Whether the job is being generated, as far as signals and reads tell."""
        if self._signals is not None and self._signals.started:
            return True
        return self.latest is not None and self.latest.processing > 0

    async def decide(self) -> NativeStatus | None:
        """Take the first-read decision, which a stream's headers wait for (STR-2).

        Returns:
            The status when it already shows the reply, else None: the wait goes on.

        Raises:
            WaitError: The request is refused, faulted or over its budget.
        """
        source = WakeSource.IMMEDIATE
        first_read_at: float | None = None
        while True:
            status = await self._read(source)
            if status is not None:
                if status.replied:
                    self._observer.decided(status)
                    return status
                self._judge(status)
                now = self._budget.clock()
                first_read_at = now if first_read_at is None else first_read_at
                if not self._fail_fast or self._admits(status, now - first_read_at):
                    self._observer.decided(status)
                    return None
                rest = first_read_at + POSITIONED_READ_WAIT_SECONDS - now
                source = await self._sleep(min(self._timing.recheck, rest), WakeSource.RECHECK)
                continue
            source = await self._next_wake()

    async def wait(self) -> NativeStatus:
        """Wait for the reply, after :meth:`decide`.

        Raises:
            WaitError: The request ended without one, or its budget ran out.
        """
        while True:
            status = await self._read(await self._next_wake())
            if status is not None and status.replied:
                return status
            if status is not None:
                self._judge(status)

    async def read_once(self) -> NativeStatus | None:
        """Read the status now, outside the rhythm of the wait: after an ended marker (decisions, Reconciliation)."""
        return await self._read(WakeSource.RECHECK)

    async def _read(self, source: WakeSource) -> NativeStatus | None:
        if self._signals is not None:
            # Before the read and never after: a signal during the read must wake again.
            self._signals.clear()
        last = source is WakeSource.DEADLINE
        limit = _DEADLINE_READ_SECONDS if last else min(self._timing.call, max(self._budget.left, 0.1))
        try:
            answer = await self._read_status(limit)
        except HordeUnreachableError:
            status = None
            self._back_off(None)
        else:
            if _is_final_refusal(answer):
                self._observer.read(source, None)
                raise StatusRefusedError(answer)
            status = self._accept(answer)
        self._observer.read(source, status)
        self.latest = status or self.latest
        self.on_change()
        if last and (status is None or not status.replied):
            if status is not None:
                self._judge(status)
            raise WaitTimeoutError
        return status

    def _accept(self, answer: NativeAnswer) -> NativeStatus | None:
        """Return the status of an answer, or None when the request may still run and the next read tells more."""
        if answer.status == _HTTP_OK and isinstance(answer.fields.get("done"), bool):
            self._failures, self._pause = 0, None
            return NativeStatus.read(answer.fields)
        self._back_off(answer.retry_after)
        return None

    def _back_off(self, retry_after: int | None) -> None:
        self._failures += 1
        pause = min(_MAX_POLL_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures - 1, 8))
        self._pause = max(pause * self._jitter(), float(retry_after or 0))

    def _judge(self, status: NativeStatus) -> None:
        """Raise what a status without a reply means; return when the wait goes on."""
        if status.faulted:
            raise RequestFaultedError(status.fault)
        if status.done_without_generation and not (status.waiting or status.processing):
            self._judge_empty()
            return
        self._empty_since = None
        if status.impossible is not None and status.impossible.kind == _DECLARATION_GAP and not status.processing:
            raise DeclarationGapError(status.impossible)
        self._judge_grace(status)

    def _judge_empty(self) -> None:
        """Believe that there is no reply once a read after the interval shows it, or a cancelled signal came (DWG)."""
        now = self._budget.clock()
        if self._empty_since is None:
            self._empty_since = now
        waited = now - self._empty_since >= self._timing.recheck
        if waited or (self._signals is not None and self._signals.cancelled):
            raise NoGenerationError

    def _judge_grace(self, status: NativeStatus) -> None:
        if status.possible or status.processing:
            self._impossible_since = None
            return
        now = self._budget.clock()
        if self._impossible_since is None:
            self._impossible_since = now
        elif now - self._impossible_since >= self._timing.grace:
            raise NoEligibleWorkerError

    def _admits(self, status: NativeStatus, since_first_read: float) -> bool:
        """Return whether a ``fail_fast`` request may wait; False when a later read has to decide (FFA-1 to FFA-13)."""
        if status.processing or status.finished:
            return True
        left = self._budget.left
        if status.threads == 0:
            raise QueueUnavailableError("no_eligible_threads", threads=0, wait_time=status.wait_time, budget_left=left)
        if not status.has_queue_information and since_first_read < POSITIONED_READ_WAIT_SECONDS:
            return False
        if status.wait_time is not None and status.wait_time > left:
            raise QueueUnavailableError(
                "wait_exceeds_budget", threads=status.threads, wait_time=status.wait_time, budget_left=left
            )
        return True

    async def _next_wake(self) -> WakeSource:
        """Wait until a read is due and return why: the earliest of signal, recheck, poll, grace and deadline."""
        if self._pause is not None:
            return await self._sleep(self._pause, WakeSource.POLL)
        if self._empty_since is not None:
            rest = self._empty_since + self._timing.recheck - self._budget.clock()
            return await self._sleep(max(0.0, rest), WakeSource.RECHECK)
        due = self._budget.clock() + self._next_poll()
        if self._impossible_since is not None:
            due = min(due, self._impossible_since + self._timing.grace)
        while True:
            left = max(0.0, due - self._budget.clock())
            # While it is generated, looked at in between, without a read: a relayed stream may stall while signals seem
            # alive.
            step = min(left, self._timing.poll) if self.started else left
            source = await self._sleep(step, WakeSource.POLL)
            if source is WakeSource.SIGNAL and self._only_started():
                continue
            if source is not WakeSource.POLL or step == left or self._hurry():
                return source

    def _only_started(self) -> bool:
        """Whether what woke was that the job has started, and nothing to read a status for; the signal is used up then.

        Every request has this signal: a read for it would be one native call in four.
        """
        if self._signals is None or self._signals.asks_for_read:
            return False
        self._signals.clear()
        return True

    def _next_poll(self) -> float:
        if self._hurry():
            return self._timing.poll
        if self._signals is not None and self._signals_alive():
            self._poll_interval = self._timing.poll
            return self._timing.signalled_poll * self._jitter()
        interval = self._poll_interval
        self._poll_interval = min(max(_MAX_POLL_SECONDS, self._timing.poll), interval * _POLL_GROWTH)
        return interval * self._jitter()

    async def _sleep(self, seconds: float, source: WakeSource) -> WakeSource:
        """Wait for a time, a signal or the deadline, whichever is first."""
        left = self._budget.left
        if left <= seconds:
            seconds, source = left, WakeSource.DEADLINE
        if self._signals is None:
            await asyncio.sleep(seconds)
            return source
        if not await self._signals.wait_within(seconds):
            return source
        self.on_change()
        return WakeSource.SIGNAL
