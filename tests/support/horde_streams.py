"""The Horde's half of the streams, written by hand: signals and delta entries of a test's choosing."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

import orjson
from redis.asyncio import Redis

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, chat_stream_key

__all__ = ["HordeStreams", "Paused", "Runnable", "Running"]


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
