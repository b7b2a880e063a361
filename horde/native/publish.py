"""What goes to Redis: signals, entries of delta streams, ended markers, wake-ups (NAT-8, NAT-9).

All of it happens after the commit that made it true, each call within half a second or not at all, and none of it can
change an answer: a broken stream store costs latency and live text, never a reply. Signals that it did not take are
published again when it is back, since a front that has it back counts on them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final
from uuid import UUID

import orjson
from loguru import logger
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from horde.chat_contract import (
    CHAT_REQUEST_EXPIRY_SECONDS,
    CHAT_SIGNALS_CHANNEL,
    EndedReason,
    SignalEvent,
    chat_stream_key,
)
from horde.native.keys import WAKE_CHANNEL

__all__ = ["DeltaEntry", "Publisher", "create_redis"]

_PUBLISH_SECONDS: Final = 0.5
_SILENCE_SECONDS: Final = 1.0
_MAX_MISSED_SIGNALS: Final = 10_000
"""Signals that wait for a store that is away; the oldest ones go first, and their waits poll."""

_MAX_STREAM_ENTRIES: Final = 4096

_LOOK_BACK_ENTRIES: Final = 256
"""Entries that are searched for those of the same attempt, where the last one is another's."""

_APPEND_DELTA: Final = """
local gen, seq = ARGV[1], tonumber(ARGV[2])
local function read(entry)
    local found = {}
    for i = 1, #entry[2], 2 do found[entry[2][i]] = entry[2][i + 1] end
    return found
end
local entries = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if entries[1] and read(entries[1]).gen ~= gen then
    entries = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[9])
end
local own, passed
for _, entry in ipairs(entries) do
    local found = read(entry)
    if found.gen == gen then own = found break end
    if not found.ended then passed = true end
end
if not own then
    if seq ~= 1 then return -1 end
elseif own.ended then
    return -1
elseif tonumber(own.seq) == seq then
    return 0
elseif passed or tonumber(own.seq) ~= seq - 1 then
    return -1
end
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], '*', 'gen', gen, 'seq', ARGV[2], 'text', ARGV[4],
           'reasoning', ARGV[5], 'worker', ARGV[6], 'model', ARGV[7])
redis.call('EXPIRE', KEYS[1], ARGV[8])
return 1
"""
"""Appends an entry only behind (gen, seq - 1), or as a gen's first; 0 tells that it is there already, -1 refuses.

Ended markers of other attempts may stand between: one that comes late must not break off the newer attempt. A gen whose
marker is there takes nothing more, and none takes anything once another one's text follows its own.
"""

_END_GENERATION: Final = """
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], '*', 'gen', ARGV[1], 'ended', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[4])
"""
"""Written for an attempt that never streamed, too: it keeps out a first entry that comes late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaEntry:
    """An entry of a request's stream.

    Attributes:
        request_id: The request.
        gen: The attempt: its job's id.
        seq: Number of the post, from 1.
        text: Text since the last post.
        reasoning: Reasoning since the last post.
        worker: Id of the worker.
        model: Model it serves with.
    """

    request_id: UUID
    gen: UUID
    seq: int
    text: str
    reasoning: str
    worker: UUID
    model: str


def create_redis(url: str) -> Redis:
    """Return a client that never repeats a command by itself: a repeat could append twice.

    Args:
        url: Address of Redis or Valkey.
    """
    return Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=_PUBLISH_SECONDS,
        socket_connect_timeout=_PUBLISH_SECONDS,
        max_connections=256,
    )


class Publisher:
    """Tells fronts and other processes what has become true.

    Args:
        redis: The client, or None where there is no Redis: then nothing is published.
    """

    def __init__(self, redis: Redis | None) -> None:
        self._redis = redis
        self._append = redis.register_script(_APPEND_DELTA) if redis is not None else None
        self._end = redis.register_script(_END_GENERATION) if redis is not None else None
        self._failing = False
        self._silent_until = 0.0
        self._missed: deque[bytes] = deque(maxlen=_MAX_MISSED_SIGNALS)
        self._has_missed = asyncio.Event()

    @property
    def streams(self) -> bool:
        """Whether there is a store for live text."""
        return self._redis is not None

    async def signal(self, request_id: UUID, event: SignalEvent) -> None:
        """Publish a completion signal."""
        if self._redis is not None:
            body = orjson.dumps({"id": str(request_id), "event": event.value})
            # One behind those that were missed: fronts read them in their order.
            if self._missed or await self._bounded(self._redis.publish(CHAT_SIGNALS_CHANNEL, body)) is None:
                self._missed.append(body)
                self._has_missed.set()

    async def run(self) -> None:
        """Publish again what the store did not take, until cancelled. A signal that it took after all comes twice."""
        while self._redis is not None:
            await self._has_missed.wait()
            self._has_missed.clear()
            while self._missed:
                body = self._missed[0]
                if await self._bounded(self._redis.publish(CHAT_SIGNALS_CHANNEL, body)) is None:
                    await asyncio.sleep(_SILENCE_SECONDS)
                elif self._missed and self._missed[0] is body:
                    self._missed.popleft()

    async def wake(self, needs: bytes) -> None:
        """Tell other processes of a request that waits for a pop."""
        if self._redis is not None:
            await self._bounded(self._redis.publish(WAKE_CHANNEL, needs))

    async def append_delta(self, entry: DeltaEntry) -> bool:
        """Append an entry; False when the stream does not continue with it, or the store did not answer in time."""
        if self._append is None:
            return False
        arguments: list[str | int] = [
            str(entry.gen),
            entry.seq,
            _MAX_STREAM_ENTRIES,
            entry.text,
            entry.reasoning,
            str(entry.worker),
            entry.model,
            CHAT_REQUEST_EXPIRY_SECONDS,
            _LOOK_BACK_ENTRIES,
        ]
        answer = await self._bounded(self._append(keys=[chat_stream_key(str(entry.request_id))], args=arguments))
        return isinstance(answer, int) and answer >= 0

    async def end_generation(self, request_id: UUID, gen: UUID, reason: EndedReason) -> None:
        """Write the ended marker of an attempt that will not become the reply."""
        if self._end is not None:
            arguments: list[str | int] = [str(gen), reason.value, _MAX_STREAM_ENTRIES, CHAT_REQUEST_EXPIRY_SECONDS]
            await self._bounded(self._end(keys=[chat_stream_key(str(request_id))], args=arguments))

    async def _bounded(self, call: Awaitable[Any]) -> Any:  # noqa: ANN401 - the answer of any command
        """Return a command's answer, or None when there was none in time.

        After a command that was not answered in time the next second's are not sent: a store that hangs must not cost
        every call its half second.
        """
        if monotonic() < self._silent_until:
            if asyncio.iscoroutine(call):
                call.close()
            return None
        try:
            async with asyncio.timeout(_PUBLISH_SECONDS):
                answer = await call
        except (RedisError, OSError, TimeoutError) as error:
            if not self._failing:
                logger.warning("Redis does not answer ({}); signals and live text are off", type(error).__name__)
            self._failing = True
            self._silent_until = monotonic() + _SILENCE_SECONDS
            return None
        if self._failing:
            logger.info("Redis answers again")
        self._failing = False
        return answer
