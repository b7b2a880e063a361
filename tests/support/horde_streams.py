"""The Horde's half of the streams, written by hand, and the reader's half of a test's conversation."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

import orjson
from redis.asyncio import Redis

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, chat_stream_key
from horde.oai.deltas import DeltaEntry, DeltaStreamReader, DeltaSubscription
from tests.support.waiting import WaitUntil

__all__ = [
    "LISTENER_NAME",
    "READER_NAMES",
    "HordeStreams",
    "Paused",
    "Runnable",
    "Running",
    "arrival",
    "joined",
    "numbers",
    "quick_reader",
    "read",
    "reader_is_blocked",
]

LISTENER_NAME = "horde-front-signals"
"""The signal listener's connection in the server's list of clients."""

READER_NAMES = ("horde-front-deltas", "horde-front-delta-joins")
"""The delta reader's connections."""


class Runnable(Protocol):
    """A part with one task."""

    async def run(self) -> None:
        """Serve until cancelled."""


type Running = Callable[[Runnable], AbstractAsyncContextManager[None]]
type Paused = Callable[[], AbstractContextManager[None]]


class HordeStreams:
    """Writes what the Horde writes, and looks at the server's clients.

    Args:
        redis: A client of the server.
    """

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    async def signal(self, request_id: object, event: object) -> None:
        await self.publish(orjson.dumps({"id": request_id, "event": event}))

    async def publish(self, body: bytes) -> None:
        await self.redis.publish(CHAT_SIGNALS_CHANNEL, body)

    async def post(self, request_id: str, seq: int, text: str = "x", *, gen: str = "g1") -> bytes:
        return await self.add(request_id, {"gen": gen, "seq": seq, "text": text, "reasoning": ""})

    async def add(self, request_id: str, fields: dict[str, object], *, entry_id: str = "*") -> bytes:
        key = chat_stream_key(request_id)
        async with self.redis.pipeline(transaction=True) as pipeline:
            pipeline.xadd(key, fields, id=entry_id)  # type: ignore[arg-type] # dict is invariant
            pipeline.expire(key, 60)
            added, _ = await pipeline.execute()
        assert isinstance(added, bytes)
        return added

    async def clients(self, name: str) -> list[dict[str, str]]:
        return [client for client in await self.redis.client_list() if client["name"] == name]

    async def kill(self, name: str) -> None:
        for client in await self.clients(name):
            await self.redis.client_kill_filter(_id=client["id"])


def quick_reader(redis: Redis) -> DeltaStreamReader:
    """A reader that notices failures soon and reads again soon."""
    return DeltaStreamReader(redis, coalesce_seconds=0.005, read_timeout_seconds=0.5, read_pause_seconds=0.05)


def joined(reader: DeltaStreamReader, request_id: str) -> DeltaSubscription:
    """A subscription that has joined."""
    subscription = reader.subscribe(request_id)
    subscription.join()
    return subscription


async def arrival(subscription: DeltaSubscription) -> None:
    """Return once there is something to take."""
    arrived = asyncio.Event()
    subscription.notify(arrived.set)
    if not subscription.arrived:
        await arrived.wait()


async def read(subscription: DeltaSubscription, count: int) -> list[DeltaEntry]:
    """Return the next entries, as many as are named at least."""
    entries: list[DeltaEntry] = []
    async with asyncio.timeout(30):
        while len(entries) < count:
            await arrival(subscription)
            entries += subscription.take()
    return entries


async def numbers(subscription: DeltaSubscription, count: int) -> list[int]:
    """Return the sequence numbers of the next entries."""
    return [entry.seq for entry in await read(subscription, count)]


async def reader_is_blocked(horde: HordeStreams, wait_until: WaitUntil) -> None:
    """Wait until the reader sits in its blocking read."""

    async def is_blocked() -> bool:
        return any("b" in client["flags"] for client in await horde.clients(READER_NAMES[0]))

    await wait_until(is_blocked, description="the blocking read")
