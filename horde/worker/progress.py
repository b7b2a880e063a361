"""Live text of one job: batches of what is new, numbered, about one a second, and heartbeats between (WRK-1, WRK-5).

What is posted is always the start of what will be submitted: a batch is taken from the reply in order and never
changed. The first post goes as soon as there is text, since somebody waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from horde.worker.horde_client import ProgressVerdict

__all__ = ["JobCancelledError", "PostProgress", "ProgressBatch", "ProgressBatcher", "ProgressPacing", "ProgressPoster"]

_MAX_BATCH_CHARACTERS: Final = 10_000
"""Bound of one post: at six bytes for an escaped character it stays below the Horde's 64 KiB."""


class JobCancelledError(Exception):
    """The Horde wants the job no longer."""


@dataclass(frozen=True, slots=True)
class ProgressBatch:
    """What one post carries.

    Attributes:
        seq: Its number, from 1.
        text: Content, in reply order.
        reasoning: Reasoning, which comes before the content.
    """

    seq: int
    text: str
    reasoning: str


class ProgressBatcher:
    """Collects what is new and cuts it into numbered batches. Pure."""

    def __init__(self) -> None:
        self._text = ""
        self._reasoning = ""
        self._seq = 0

    @property
    def waiting(self) -> bool:
        """Whether there is something to post."""
        return bool(self._text or self._reasoning)

    def add(self, *, text: str = "", reasoning: str = "") -> None:
        """Take more of the reply."""
        self._text += text
        self._reasoning += reasoning

    def take(self) -> ProgressBatch:
        """Return the next batch; what passes the bound of one post stays for the next."""
        reasoning, self._reasoning = self._reasoning[:_MAX_BATCH_CHARACTERS], self._reasoning[_MAX_BATCH_CHARACTERS:]
        # Content may only follow the reasoning that came before it.
        room = 0 if self._reasoning else _MAX_BATCH_CHARACTERS - len(reasoning)
        text, self._text = self._text[:room], self._text[room:]
        self._seq += 1
        return ProgressBatch(self._seq, text, reasoning)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressPacing:
    """How often a job is posted for.

    Attributes:
        interval_seconds: Between two posts of text.
        heartbeat_seconds: Longest time without any post.
    """

    interval_seconds: float = 1.0
    heartbeat_seconds: float = 3.0

    @classmethod
    def from_pop(cls, progress: object) -> "ProgressPacing":
        """Read the pop's ``progress`` object; anything unusable in it counts as left out.

        Heartbeats come often enough that two may be lost before the lease ends, and seldom enough to cost little.
        """
        fields = progress if isinstance(progress, dict) else {}
        interval = _seconds(fields.get("interval_seconds"), default=1.0, least=0.1, most=60.0)
        lease = _seconds(fields.get("lease_seconds"), default=30.0, least=3.0, most=1200.0)
        return cls(interval_seconds=min(interval, lease / 3), heartbeat_seconds=max(interval, min(3.0, lease / 3)))


def _seconds(value: object, *, default: float, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return max(least, min(float(value), most))


type PostProgress = Callable[[str, int | None, str, str], Awaitable[ProgressVerdict]]
"""Posts job id, number (None for a heartbeat), text and reasoning."""


class ProgressPoster:
    """Posts the progress of one job until it is closed; never two posts at a time.

    Args:
        job_id: The job.
        post: As :meth:`horde.worker.horde_client.HordeClient.post_progress`.
        pacing: How often.
        live: The client wants live text; without it only heartbeats are sent.
    """

    def __init__(self, job_id: str, post: PostProgress, pacing: ProgressPacing, *, live: bool) -> None:
        self._job_id = job_id
        self._post = post
        self._pacing = pacing
        self._live = live
        self._batcher = ProgressBatcher()
        self._unsent: ProgressBatch | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def add(self, *, text: str = "", reasoning: str = "") -> None:
        """Take more of the reply; returns at once."""
        if not self._live:
            return
        self._batcher.add(text=text, reasoning=reasoning)
        self._wake.set()

    def close(self) -> None:
        """Start no further post; one on its way is left to end, and what it says no longer matters."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Post until closed.

        Raises:
            JobCancelledError: The Horde answered that the job is cancelled, ended or unknown.
        """
        loop = asyncio.get_running_loop()
        last_post = loop.time()
        await self._wait_for_text(last_post + self._pacing.heartbeat_seconds)
        while not self._closed:
            last_post = loop.time()
            await self._post_once()
            # Pace first, so that text which came meanwhile does not leave at once; then wait for text, or a heartbeat.
            await self._wait_until(last_post + self._pacing.interval_seconds)
            await self._wait_for_text(last_post + self._pacing.heartbeat_seconds)

    async def _wait_for_text(self, deadline: float) -> None:
        while not self._closed and not self._batcher.waiting and self._unsent is None:
            self._wake.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _wait_until(self, deadline: float) -> None:
        while not self._closed:
            self._wake.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _post_once(self) -> None:
        batch = self._unsent
        if batch is None and self._live and self._batcher.waiting:
            batch = self._batcher.take()
        if batch is None:
            verdict = await self._post(self._job_id, None, "", "")
        else:
            verdict = await self._post(self._job_id, batch.seq, batch.text, batch.reasoning)
        if verdict is ProgressVerdict.CANCELLED and not self._closed:
            raise JobCancelledError
        self._unsent = batch if verdict is ProgressVerdict.NOT_RECEIVED else None
        if verdict is ProgressVerdict.UNKNOWN and batch is not None:
            self._stop_text()

    def _stop_text(self) -> None:
        """Go on with heartbeats: the reply arrives whole, and nothing is doubled or left out before."""
        self._live = False
        self._batcher = ProgressBatcher()
