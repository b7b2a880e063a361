"""Limits of submits, per key and per address of the anonymous user (NAT-15).

One script call in Redis counts for all processes. While Redis is away each process counts for itself: the limit is
then one of each process, and never none. A limit is a bucket (the generic cell rate algorithm): it holds a minute's
submits and fills evenly; the moment at which it is full again is all that is kept of a caller.
"""

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from horde.native.errors import RefusalError, ReturnCode

__all__ = ["SubmitLimiter"]

_PREFIX: Final = "horde:chat:limit:"
_REDIS_SECONDS: Final = 0.25
_SILENCE_SECONDS: Final = 1.0
"""Redis is not asked for so long after it failed to answer."""

_REMEMBERED_CALLERS: Final = 10_000
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


@dataclass(frozen=True, slots=True)
class _Taken:
    wait_ms: float
    full_ms: float


class SubmitLimiter:
    """Refuses submits of a caller that sends too many.

    Args:
        redis: Where processes count together; None counts for this process alone.
    """

    def __init__(self, redis: Redis | None = None) -> None:
        self._script = redis.register_script(_TAKE) if redis is not None else None
        self._silent_until = 0.0
        self._full_at: OrderedDict[str, float] = OrderedDict()

    async def take(self, caller: str, per_minute: int) -> None:
        """Count a submit.

        Args:
            caller: Who submits: ``user:<number>`` or ``address:<source>``.
            per_minute: Submits that a caller may send in a minute, also all at once; 0 for no limit.

        Raises:
            RefusalError: ``TooManyPrompts``, with ``Retry-After`` and ``X-RateLimit-*``.
        """
        if not per_minute:
            return
        each = _MINUTE_MS / per_minute
        taken = await self._take_shared(caller, each) or self._take_local(caller, each)
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

    async def _take_shared(self, caller: str, each: float) -> _Taken | None:
        """Count in Redis; None when there is none or it does not answer in time."""
        if self._script is None or monotonic() < self._silent_until:
            return None
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                wait, full = await self._script(keys=[_PREFIX + caller], args=[each, _MINUTE_MS])
        except (RedisError, OSError, TimeoutError):
            # The publisher, which asks far more often, logs that Redis is away.
            self._silent_until = monotonic() + _SILENCE_SECONDS
            return None
        return _Taken(float(wait), float(full))

    def _take_local(self, caller: str, each: float) -> _Taken:
        now = monotonic() * 1000
        before = max(self._full_at.pop(caller, now), now)
        full = before + each
        wait = full - now - _MINUTE_MS
        self._full_at[caller] = before if wait > 0 else full
        while len(self._full_at) > _REMEMBERED_CALLERS:
            self._full_at.popitem(last=False)
        return _Taken(max(0.0, wait), self._full_at[caller] - now)
