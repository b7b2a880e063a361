"""What the stream of a request takes in, in whatever order the posts and the ended markers of its attempts come."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from redis.asyncio import Redis

from horde.chat_contract import EndedReason, SignalEvent, chat_stream_key
from horde.local.ports import reserved_port
from horde.local.valkey import LocalValkey
from horde.native.publish import DeltaEntry, Publisher, create_redis
from tests.support.subscription import reading_signals

_REQUEST, _WORKER = UUID(int=1), UUID(int=2)
_OLD, _NEW = UUID(int=3), UUID(int=4)


class _Stream:
    """The stream of one request."""

    def __init__(self, redis_url: str) -> None:
        self.redis = create_redis(redis_url)
        self._publisher = Publisher(self.redis)

    async def post(self, gen: UUID, seq: int) -> bool:
        return await self._publisher.append_delta(
            DeltaEntry(request_id=_REQUEST, gen=gen, seq=seq, text="x", reasoning="", worker=_WORKER, model="m")
        )

    async def end(self, gen: UUID) -> None:
        await self._publisher.end_generation(_REQUEST, gen, EndedReason.LEASE_EXPIRED)

    async def entries(self) -> list[tuple[UUID, str]]:
        raw: Any = await self.redis.xrange(chat_stream_key(str(_REQUEST)))
        return [(UUID(fields[b"gen"].decode()), fields.get(b"seq", b"end").decode()) for _, fields in raw]


@pytest.fixture
async def stream(redis_url: str) -> AsyncIterator[_Stream]:
    stream = _Stream(redis_url)
    yield stream
    await stream.redis.aclose()


@pytest.mark.rule("NAT-9")
async def test_a_first_post_of_an_ended_attempt_that_comes_late_is_refused(stream: _Stream) -> None:
    await stream.end(_OLD)
    assert await stream.post(_NEW, 1)
    assert not await stream.post(_OLD, 1)
    assert await stream.post(_NEW, 2)
    assert await stream.entries() == [(_OLD, "end"), (_NEW, "1"), (_NEW, "2")]


@pytest.mark.rule("NAT-9")
async def test_no_post_of_an_older_attempt_follows_a_newer_one(stream: _Stream) -> None:
    assert await stream.post(_OLD, 1)
    assert await stream.post(_NEW, 1)
    # Sent again it is there already, and is not there twice.
    assert await stream.post(_OLD, 1)
    assert not await stream.post(_OLD, 2)
    assert await stream.post(_NEW, 2)
    assert await stream.entries() == [(_OLD, "1"), (_NEW, "1"), (_NEW, "2")]


@pytest.mark.rule("NAT-9")
async def test_a_marker_that_comes_late_breaks_off_no_newer_attempt(stream: _Stream) -> None:
    assert await stream.post(_OLD, 1)
    assert await stream.post(_NEW, 1)
    await stream.end(_OLD)
    assert await stream.post(_NEW, 2)
    assert not await stream.post(_NEW, 4)
    await stream.end(_NEW)
    assert not await stream.post(_NEW, 3)
    assert await stream.entries() == [(_OLD, "1"), (_NEW, "1"), (_OLD, "end"), (_NEW, "2"), (_NEW, "end")]


@pytest.mark.rule("NAT-8")
async def test_signals_that_the_store_did_not_take_come_in_their_order_when_it_is_back(tmp_path: Path) -> None:
    async with LocalValkey(tmp_path) as store, create_redis(store.url) as redis:
        publisher = Publisher(redis)
        repeating = asyncio.create_task(publisher.run(), name="test - missed signals")
        store.process.send_signal(signal.SIGKILL)
        await store.process.wait()
        with reserved_port(urlsplit(store.url).port or 0):
            for event in (SignalEvent.STARTED, SignalEvent.REQUEUED, SignalEvent.STARTED):
                await publisher.signal(_REQUEST, event)
            await store.start()
        async with Redis.from_url(store.url) as front, reading_signals(front) as signals:
            await publisher.signal(_REQUEST, SignalEvent.FINISHED)
            seen: list[str] = []
            while not seen or seen[-1] != "finished":
                seen.append((await signals.next())[1])
        repeating.cancel()
        await asyncio.wait({repeating})
    # Those that came before the front was there again are those that it looks for by itself.
    assert seen == ["started", "requeued", "started", "finished"][-len(seen) :]
