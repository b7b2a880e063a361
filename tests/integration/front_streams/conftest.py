"""A server, a hand-written Horde, and parts of the front that run while a test looks at them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from loguru import logger
from redis.asyncio import Redis

from tests.support.horde_streams import HordeStreams, Paused, Runnable, Running
from tests.support.valkey import StreamStoreForTests


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def horde(redis: Redis) -> HordeStreams:
    return HordeStreams(redis)


@pytest.fixture
def running() -> Running:
    """Run a part for as long as the context is open; it must not end by itself."""

    @asynccontextmanager
    async def run(part: Runnable) -> AsyncIterator[None]:
        task = asyncio.create_task(part.run(), name=f"test - {type(part).__name__}")
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return run


@pytest.fixture
def paused(stream_store: StreamStoreForTests) -> Paused:
    """Stop the server's process for as long as the context is open."""

    @contextlib.contextmanager
    def pause() -> Iterator[None]:
        os.kill(stream_store.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(stream_store.pid, signal.SIGCONT)

    return pause


@pytest.fixture
def log() -> Iterator[list[str]]:
    """The log's messages of the test."""
    messages: list[str] = []
    handler = logger.add(lambda message: messages.append(message.record["message"]), level="INFO")
    yield messages
    logger.remove(handler)
