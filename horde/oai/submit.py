"""Submitting once: an operation key, recovery of a lost answer, what is done when it stays unknown (rules SUB, U30).

A submit whose answer is lost may have created a job that costs kudos. It is sent again under the same key, which the
Horde answers with the job of the first copy. When no answer comes at all, whatever the key names is cancelled; only
when that fails too does the client hear that the outcome is unknown.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from loguru import logger

from horde.oai.cancel import Cancels, CancelTarget
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.horde_client import Caller, HordeClient, HordeUnreachableError, NativeAnswer
from horde.oai.refusals import refusal_error
from horde.oai.schema import ChatCompletionRequest

__all__ = ["Submission", "SubmitObserver", "Submitter"]

_MAX_ATTEMPTS: Final = 4
"""The first and at most three re-sends."""

_FIRST_BACKOFF_SECONDS: Final = 0.1
_MAX_BACKOFF_SECONDS: Final = 2.0
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")
_HTTP_CLAIM_MATCH: Final = 200
_HTTP_QUEUED: Final = 202
_HTTP_SERVER_ERROR: Final = 500


class SubmitObserver(Protocol):
    """Told of what became of lost submits."""

    def submit_recovered(self, *, existing_claim: bool) -> None:
        """A re-send was answered; whether the first copy had arrived (MET-25)."""

    def submit_outcome_unknown(self) -> None:
        """A request was answered with an unknown outcome (MET-24)."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One submit.

    Attributes:
        request: The request, for the keys its client used.
        body: The native body as JSON.
        operation_key: The key in it.
        caller: The user.
    """

    request: ChatCompletionRequest
    body: bytes
    operation_key: str
    caller: Caller


@dataclass(slots=True)
class _Attempts:
    """What the attempts of one submit have shown so far."""

    lost: bool = False
    count: int = 0
    last_root: str | None = None


class Submitter:
    """Submits requests to the Horde.

    Args:
        client: The native client.
        cancels: Cleans up after outcomes that were never learned.
        timeout_seconds: Time for one submit, its re-sends included.
        observer: Told of recoveries.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: HordeClient,
        cancels: Cancels,
        *,
        timeout_seconds: float,
        observer: SubmitObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cancels = cancels
        self._timeout = timeout_seconds
        self._observer = observer
        self._clock = clock

    async def submit(self, submission: Submission) -> CancelTarget:
        """Submit and return what now exists on the Horde.

        Raises:
            ChatFrontError: The Horde refused, or did not answer; whether anything may exist is in it.
        """
        self._cancels.begin(submission.operation_key, submission.caller)
        attempts = _Attempts()
        deadline = self._clock() + self._timeout
        refusal: NativeAnswer | None = None
        while attempts.count < _MAX_ATTEMPTS and (left := deadline - self._clock()) > 0:
            answer = await self._attempt(submission, attempts, left / 2 if attempts.count < _MAX_ATTEMPTS - 1 else left)
            if answer is not None and (request_id := _request_id(answer)):
                if attempts.lost:
                    self._observer.submit_recovered(existing_claim=answer.status == _HTTP_CLAIM_MATCH)
                return CancelTarget(submission.caller, self._clock(), submission.operation_key, request_id)
            if answer is not None and not _is_lost(answer):
                refusal = answer
                break
            if attempts.count < _MAX_ATTEMPTS:
                await self._back_off(attempts.count, deadline)
        return await self._give_up(submission, attempts, refusal)

    async def _attempt(self, submission: Submission, attempts: _Attempts, seconds: float) -> NativeAnswer | None:
        attempts.count += 1
        try:
            answer = await self._client.submit(
                submission.body,
                submission.caller,
                limit_seconds=seconds,
                after=attempts.last_root,
                recovery=attempts.count > 1,
            )
        except HordeUnreachableError as error:
            attempts.lost = attempts.lost or error.maybe_received
            attempts.last_root = error.root
            return None
        if _is_lost(answer):
            attempts.lost = True
            attempts.last_root = answer.root
        return answer

    async def _back_off(self, count: int, deadline: float) -> None:
        pause = min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2**count) * random.uniform(0.5, 1.0)  # noqa: S311
        await asyncio.sleep(max(0.0, min(pause, deadline - self._clock())))

    async def _give_up(self, submission: Submission, attempts: _Attempts, refusal: NativeAnswer | None) -> CancelTarget:
        if attempts.lost:
            # A refusal of a re-send says nothing about the first copy, which may be queued.
            target = CancelTarget(submission.caller, self._clock(), submission.operation_key)
            if not await self._cancels.confirm(target):
                self._observer.submit_outcome_unknown()
                logger.warning("The outcome of the submit under operation key {} is unknown", submission.operation_key)
                raise ChatFrontError(
                    FrontCode.HORDE_UNAVAILABLE,
                    "The AI Horde did not answer the submit, and whether the request was queued is unknown. It may run "
                    "and be charged; a retry is a new request.",
                    metadata={"submit_outcome": "unknown", "operation_key": submission.operation_key},
                    held=True,
                )
        if refusal is not None:
            raise refusal_error(refusal, submission.request)
        raise ChatFrontError(
            FrontCode.HORDE_UNAVAILABLE, "The AI Horde did not answer; the request was not queued and a retry is safe."
        )


def _request_id(answer: NativeAnswer) -> str | None:
    if answer.status not in {_HTTP_CLAIM_MATCH, _HTTP_QUEUED}:
        return None
    value = answer.fields.get("id")
    # It becomes part of paths, headers and logs: nothing but visible ASCII may get there.
    return value if isinstance(value, str) and _REQUEST_ID.fullmatch(value) else None


def _is_lost(answer: NativeAnswer) -> bool:
    """Whether an answer says nothing about what happened: any 5xx without a return code, a success without an id."""
    if answer.status >= _HTTP_SERVER_ERROR:
        return answer.rc is None
    return answer.status < 400 and _request_id(answer) is None  # noqa: PLR2004 - HTTP's errors
