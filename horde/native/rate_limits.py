"""Limits of calls, per key and per address of the anonymous user (NAT-15).

Submits, reads and cancels have buckets of their own, so that none uses up another's. What a worker sends counts when it
brings nothing: a pop without a job, for that worker, and a post for a job that does not run, for its key. Pops that
bring jobs and posts for running jobs are given back, so that no worker is held up by the work it does.

One script call in Redis counts for all processes. While Redis is away each process counts for itself: the limit is
then one of each process, and never none. A limit is a bucket (the generic cell rate algorithm): it holds a minute's
calls and fills evenly; the moment at which it is full again is all that is kept of a caller.
"""

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Final, Protocol

from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from horde.native.errors import RefusalError, ReturnCode

__all__ = ["CallKind", "CallLimiter", "Caller", "Limits"]

_PREFIX: Final = "horde:chat:limit:"
_REDIS_SECONDS: Final = 0.25
_SILENCE_SECONDS: Final = 1.0
"""Redis is not asked for so long after it failed to answer."""

_REMEMBERED_BUCKETS: Final = 10_000
_MINUTE_MS: Final = 60_000.0

_TAKE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + tonumber(ARGV[1])
local over = full - now - tonumber(ARGV[2])
if over > 0 then return {math.ceil(over), math.ceil(full - now - ARGV[1])} end
redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', math.ceil(full - now))
return {0, math.ceil(full - now)}
"""
"""Takes one from a caller's bucket, by the clock of Redis. ``ARGV``: milliseconds that one takes to come back, and that
an empty bucket takes to fill. Answers how long to wait (0: taken), and when the bucket is full, in milliseconds."""

_GIVE_BACK: Final = """
local full = tonumber(redis.call('GET', KEYS[1]) or 0) - tonumber(ARGV[1])
local time = redis.call('TIME')
local left = math.ceil(full - time[1] * 1000 - math.floor(time[2] / 1000))
if left > 0 then redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', left) else redis.call('DEL', KEYS[1]) end
"""
"""Puts one back into a caller's bucket. ``ARGV``: milliseconds that one takes to come back by itself."""


class CallKind(StrEnum):
    """What is counted apart."""

    SUBMIT = "submit"
    READ = "read"
    CANCEL = "cancel"
    POP = "pop"
    POST = "post"


class Limits(Protocol):
    """The settings that limit calls: how many in a minute, 0 for no limit."""

    @property
    def user_submits_per_minute(self) -> int:
        """Submits of a key."""

    @property
    def anonymous_submits_per_minute(self) -> int:
        """Submits of an address without a key."""

    @property
    def user_reads_per_minute(self) -> int:
        """Reads of a key."""

    @property
    def anonymous_reads_per_minute(self) -> int:
        """Reads of an address without a key."""

    @property
    def user_cancels_per_minute(self) -> int:
        """Cancels of a key."""

    @property
    def anonymous_cancels_per_minute(self) -> int:
        """Cancels of an address without a key."""

    @property
    def worker_empty_pops_per_minute(self) -> int:
        """Pops without a job of one worker."""

    @property
    def user_lost_posts_per_minute(self) -> int:
        """Posts of a key for jobs that do not run."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call is counted.

    Attributes:
        user_id: Number of the user.
        anonymous: Whether that is everybody who has no key.
        source: What the client's address counts as.
    """

    user_id: int
    anonymous: bool
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Taken:
    wait_ms: float
    full_ms: float


class CallLimiter:
    """Refuses calls of a caller that sends too many.

    Args:
        limits: How many are too many.
        redis: Where processes count together; None counts for this process alone.
    """

    def __init__(self, limits: Limits, redis: Redis | None = None) -> None:
        self._limits = limits
        self._take_script = redis.register_script(_TAKE) if redis is not None else None
        self._give_script = redis.register_script(_GIVE_BACK) if redis is not None else None
        self._silent_until = 0.0
        self._full_at: OrderedDict[str, float] = OrderedDict()

    async def take(self, kind: CallKind, caller: Caller, worker: str = "") -> None:
        """Count a call.

        Args:
            kind: What it is.
            caller: Whose it is.
            worker: The worker's name, for a pop.

        Raises:
            RefusalError: ``TooManyPrompts``, with ``Retry-After`` and ``X-RateLimit-*``.
        """
        per_minute = self._per_minute(kind, anonymous=caller.anonymous)
        if not per_minute:
            return
        each, bucket = _MINUTE_MS / per_minute, _bucket(kind, caller, worker)
        taken = await self._take_shared(bucket, each) or self._take_local(bucket, each)
        if taken.wait_ms > 0:
            left = max(0, math.floor((_MINUTE_MS - taken.full_ms) / each))
            raise RefusalError(
                ReturnCode.TOO_MANY_PROMPTS,
                headers={
                    "Retry-After": str(math.ceil(taken.wait_ms / 1000)),
                    "X-RateLimit-Limit": str(per_minute),
                    "X-RateLimit-Remaining": str(left),
                    "X-RateLimit-Reset": str(math.ceil(taken.full_ms / 1000)),
                },
            )

    async def give_back(self, kind: CallKind, caller: Caller, worker: str = "") -> None:
        """Undo :meth:`take` for a call that was worth it."""
        per_minute = self._per_minute(kind, anonymous=caller.anonymous)
        if not per_minute:
            return
        each, bucket = _MINUTE_MS / per_minute, _bucket(kind, caller, worker)
        if bucket in self._full_at:
            self._full_at[bucket] -= each
        if self._give_script is not None:
            await self._ask(self._give_script, bucket, [each])

    def _per_minute(self, kind: CallKind, *, anonymous: bool) -> int:
        limits = self._limits
        match kind:
            case CallKind.SUBMIT:
                return limits.anonymous_submits_per_minute if anonymous else limits.user_submits_per_minute
            case CallKind.READ:
                return limits.anonymous_reads_per_minute if anonymous else limits.user_reads_per_minute
            case CallKind.CANCEL:
                return limits.anonymous_cancels_per_minute if anonymous else limits.user_cancels_per_minute
            case CallKind.POP:
                return limits.worker_empty_pops_per_minute
            case CallKind.POST:
                return limits.user_lost_posts_per_minute

    async def _take_shared(self, bucket: str, each: float) -> _Taken | None:
        """Count in Redis; None when there is none or it does not answer in time."""
        if self._take_script is None:
            return None
        answer = await self._ask(self._take_script, bucket, [each, _MINUTE_MS])
        return None if answer is None else _Taken(float(answer[0]), float(answer[1]))

    async def _ask(self, script: AsyncScript, bucket: str, arguments: list[float]) -> list[int] | None:
        """Run a script on a bucket; None when Redis does not answer in time."""
        if monotonic() < self._silent_until:
            return None
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                answer: list[int] = await script(keys=[_PREFIX + bucket], args=arguments) or []
        except (RedisError, OSError, TimeoutError):
            # The publisher, which asks far more often, logs that Redis is away.
            self._silent_until = monotonic() + _SILENCE_SECONDS
            return None
        return answer

    def _take_local(self, bucket: str, each: float) -> _Taken:
        now = monotonic() * 1000
        before = max(self._full_at.pop(bucket, now), now)
        full = before + each
        wait = full - now - _MINUTE_MS
        self._full_at[bucket] = before if wait > 0 else full
        while len(self._full_at) > _REMEMBERED_BUCKETS:
            self._full_at.popitem(last=False)
        return _Taken(max(0.0, wait), self._full_at[bucket] - now)


def _bucket(kind: CallKind, caller: Caller, worker: str) -> str:
    who = f"address:{caller.source}" if caller.anonymous else f"user:{caller.user_id}"
    return f"{kind.value}:{who}:{worker}" if worker else f"{kind.value}:{who}"
