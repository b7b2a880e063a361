"""Reading what is published, from a moment that the test knows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from redis.asyncio import Redis

from horde.chat_contract import CHAT_SIGNALS_CHANNEL

__all__ = ["SignalReader", "reading_signals"]

_READ_SECONDS = 30.0


class SignalReader:
    """Reads the completion signals of a Horde.

    Args:
        read: Returns the next message.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    async def next(self) -> tuple[str, str]:
        """Return the request's id and the event of the next signal, waiting for it."""
        async with asyncio.timeout(_READ_SECONDS):
            signal = orjson.loads((await self._read())["data"])
        return signal["id"], signal["event"]


@contextlib.asynccontextmanager
async def reading_signals(redis: Redis) -> AsyncIterator[SignalReader]:
    """Subscribe to completion signals; on entering, the server has confirmed it."""
    async with redis.pubsub() as subscription:
        await subscription.subscribe(CHAT_SIGNALS_CHANNEL)

        async def read() -> Any:
            return await subscription.get_message(timeout=None)

        async with asyncio.timeout(_READ_SECONDS):
            assert (await read())["type"] == "subscribe"
        yield SignalReader(read)
