"""The front's clients of Redis: address, database and limits; connections of their own are made from them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

__all__ = ["open_redis"]

_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_SOCKET_TIMEOUT_SECONDS: Final = 10.0


@asynccontextmanager
async def open_redis(url: str, *, database: int | None = None) -> AsyncGenerator[Redis]:
    """Open a client; it connects when it is first used.

    Args:
        url: ``redis://`` URL.
        database: Database number in place of the URL's.
    """
    client = Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=_CONNECT_TIMEOUT_SECONDS,
        socket_timeout=_SOCKET_TIMEOUT_SECONDS,
    )
    if database is not None:
        client.connection_pool.connection_kwargs["db"] = database
    try:
        yield client
    finally:
        await client.aclose()
