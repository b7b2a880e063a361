"""Cancels on the Horde: within a budget, on connections of their own, sent again when they fail (rules CAN).

A request that nobody waits for costs its user kudos and a volunteer's time, so a cancel that did not get through is
kept and repeated until the Horde has dropped the request by itself.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from loguru import logger

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.oai.errors import ChatFrontError
from horde.oai.horde_client import Caller, HordeClient, HordeUnreachableError
from horde.oai.native_status import NativeStatus
from horde.oai.open_records import OpenRecords

__all__ = ["MAX_FAILED_CANCELS", "CancelOutcome", "CancelTarget", "Cancels"]

MAX_FAILED_CANCELS: Final = 10_000
"""The most cancels kept for another try; the one that has waited longest is dropped first (CAN-9)."""

DRAIN_SECONDS: Final = 2.0
"""Time of the last cancels of a front that stops, after its requests have ended (decision U44: under 30 s in all)."""

_HTTP_NOT_FOUND: Final = 404
_HURRIED_SECONDS: Final = 3.0
_HTTP_OK: Final = 200


class CancelOutcome(StrEnum):
    """How one attempt ended (MET-33)."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    NOT_STARTED = "not_started"
    ALREADY_GONE = "already_gone"


_TO_REPEAT: Final = frozenset({CancelOutcome.FAILED, CancelOutcome.TIMED_OUT, CancelOutcome.NOT_STARTED})


class CancelObserver(Protocol):
    """Told of each attempt."""

    def cancel_ended(self, outcome: CancelOutcome) -> None:
        """Record one attempt."""


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """What to cancel: a request by its id, or whatever was submitted under an operation key.

    Attributes:
        caller: The user it was submitted for; another key gets 404.
        submitted_at: Monotonic seconds of the submit; it expires by itself 20 minutes later.
        request_id: The Horde's id, None when the submit's answer never came.
        operation_key: The front's key of the submit.
    """

    caller: Caller
    submitted_at: float
    operation_key: str
    request_id: str | None = None

    def __str__(self) -> str:
        return self.request_id or f"of operation {self.operation_key}"


class Cancels:
    """Sends cancels and keeps those that failed.

    Args:
        client: The native client, whose cancel connections are used.
        timeout_seconds: Budget of one attempt, its wait for a connection included (CAN-4).
        retry_seconds: Interval of the retries (CAN-6).
        observer: Told of every attempt.
        records: Records of open requests, closed when nothing of one is left to cancel; None when none are kept.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: HordeClient,
        *,
        timeout_seconds: float,
        retry_seconds: float,
        observer: CancelObserver,
        records: OpenRecords | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._timeout = timeout_seconds
        self._retry_seconds = retry_seconds
        self._observer = observer
        self._records = records
        self._clock = clock
        self._failed: OrderedDict[str, CancelTarget] = OrderedDict()
        self._running: dict[str, asyncio.Task[NativeStatus | None]] = {}
        self._following: dict[asyncio.Task[None], tuple[asyncio.Task[CancelTarget], CancelTarget]] = {}
        self._followed: set[str] = set()

    @property
    def failed_count(self) -> int:
        """How many cancels wait for another try."""
        return len(self._failed)

    async def cancel(self, target: CancelTarget) -> NativeStatus | None:
        """Cancel now, within the budget; what fails is kept for another try.

        The call runs in a task of its own: a caller that is cancelled meanwhile does not interrupt it, and a second
        cancel of the same request waits for the first.

        Returns:
            The status the Horde answered with: a reply committed before the cancel is in it. None without an answer.
        """
        return await asyncio.shield(self._start(target))

    def _start(self, target: CancelTarget) -> "asyncio.Task[NativeStatus | None]":
        key = target.operation_key
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._cancel(target), name="front - cancel")
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: str, task: "asyncio.Task[NativeStatus | None]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            self.settle(key)

    def begin(self, operation_key: str, caller: Caller) -> None:
        """Note an operation that is submitted now: whoever takes over from this front, should it die, cancels it."""
        if self._records is not None:
            self._records.open(operation_key, caller)

    def settle(self, operation_key: str) -> None:
        """Close the record of an operation that has ended, unless it is still to be cancelled: that closes it later."""
        pending = operation_key in self._running or operation_key in self._failed or operation_key in self._followed
        if self._records is not None and not pending:
            self._records.close(operation_key)

    async def _cancel(self, target: CancelTarget) -> NativeStatus | None:
        outcome, status = await self._attempt(target)
        self._observer.cancel_ended(outcome)
        if outcome in _TO_REPEAT:
            self._keep(target)
        else:
            self._failed.pop(target.operation_key, None)
        return status

    async def confirm(self, target: CancelTarget) -> bool:
        """Cancel now and say whether the Horde confirmed that nothing of it runs or ever will."""
        await self.cancel(target)
        return target.operation_key not in self._failed

    def spawn(self, target: CancelTarget) -> None:
        """Cancel in the background: nobody waits for the answer."""
        self._start(target)

    def spawn_after(self, submit: "asyncio.Task[CancelTarget]", operation: CancelTarget) -> None:
        """Let a submit whose client left finish, then cancel what it created (decision U30).

        Args:
            submit: The submit under way.
            operation: Its operation, cancelled by key when the front stops before the submit ends.
        """

        async def follow() -> None:
            try:
                target = await asyncio.shield(submit)
            except ChatFrontError:
                return  # Refused, or cleaned up by the submit itself: nothing is left to cancel.
            await self.cancel(target)

        def ended(task: asyncio.Task[None]) -> None:
            self._following.pop(task, None)
            self._followed.discard(operation.operation_key)
            if not task.cancelled():
                self.settle(operation.operation_key)

        task = asyncio.create_task(follow(), name="front - cancel after submit")
        self._following[task] = (submit, operation)
        self._followed.add(operation.operation_key)
        task.add_done_callback(ended)

    async def abort(self, submit: "asyncio.Task[CancelTarget]", operation: CancelTarget) -> bool:
        """Give up a submit that has not ended, and cancel whatever it created or still may.

        Args:
            submit: The submit under way.
            operation: Its operation, cancelled by key when the submit did not end by itself.

        Returns:
            Whether the Horde confirmed that nothing of it runs or ever will.
        """
        submit.cancel()
        await asyncio.wait({submit})
        if submit.cancelled():
            return await self.confirm(operation)
        if submit.exception() is not None:
            return operation.operation_key not in self._failed
        return await self.confirm(submit.result())

    def hurry(self) -> None:
        """Give each cancel from now on less time: the front stops."""
        self._timeout = min(self._timeout, _HURRIED_SECONDS)

    async def run(self) -> None:
        """Repeat failed cancels until cancelled; a request past its expiry is forgotten (CAN-8)."""
        while True:
            await asyncio.sleep(self._retry_seconds)
            await self.retry()

    async def retry(self) -> None:
        """Send every cancel that failed once more, and forget those whose request has expired by itself."""
        expired = self._clock() - CHAT_REQUEST_EXPIRY_SECONDS
        for key, target in list(self._failed.items()):
            if target.submitted_at <= expired:
                self._failed.pop(key, None)
                self.settle(key)
        if self._failed:
            await asyncio.wait([self._start(target) for target in self._failed.values()])

    async def drain(self) -> None:
        """End what is under way: abort submits nobody waits for, finish cancels, repeat the failed ones once (CAN-7).

        The whole takes no longer than :data:`DRAIN_SECONDS`: a front that stops has promised when it is gone.
        """
        deadline = self._clock() + DRAIN_SECONDS
        aborts = [
            asyncio.create_task(self.abort(submit, operation), name="front - abort")
            for submit, operation in self._following.values()
        ]
        if under_way := [*aborts, *self._running.values()]:
            await asyncio.wait(under_way, timeout=DRAIN_SECONDS / 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                await self.retry()
        left = [task for task in (*aborts, *self._running.values()) if not task.done()]
        for task in left:
            task.cancel()
        if left:  # They hold connections, which are closed next.
            await asyncio.wait(left)
        if self._failed:
            logger.warning("{} requests could not be cancelled on the Horde and end by their expiry", len(self._failed))

    def _keep(self, target: CancelTarget) -> None:
        self._failed.setdefault(target.operation_key, target)
        while len(self._failed) > MAX_FAILED_CANCELS:
            dropped, _ = self._failed.popitem(last=False)
            self.settle(dropped)

    async def _attempt(self, target: CancelTarget) -> tuple[CancelOutcome, NativeStatus | None]:
        deadline = self._clock() + self._timeout
        slots = self._client.cancel_slots
        try:
            async with asyncio.timeout(self._timeout):
                await slots.acquire()
        except TimeoutError:
            return CancelOutcome.NOT_STARTED, None
        try:
            return await self._send(target, max(0.001, deadline - self._clock()))
        finally:
            slots.release()

    async def _send(self, target: CancelTarget, seconds: float) -> tuple[CancelOutcome, NativeStatus | None]:
        try:
            async with asyncio.timeout(seconds):
                if target.request_id is not None:
                    answer = await self._client.cancel(target.request_id, target.caller, limit_seconds=seconds + 1)
                else:
                    answer = await self._client.cancel_operation(
                        target.operation_key, target.caller, limit_seconds=seconds + 1
                    )
        except TimeoutError:
            return CancelOutcome.TIMED_OUT, None
        except HordeUnreachableError:
            return CancelOutcome.FAILED, None
        if answer.status == _HTTP_OK:
            return CancelOutcome.ACKNOWLEDGED, NativeStatus.read(answer.fields)
        if answer.status == _HTTP_NOT_FOUND and target.request_id is not None:
            return CancelOutcome.ALREADY_GONE, None
        return CancelOutcome.FAILED, None
