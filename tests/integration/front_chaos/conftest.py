"""A Horde whose requests wait."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.support.native_server import running_native
from tests.support.waiting_horde import WaitingHorde


@pytest.fixture
async def waiting(migrated_database_url: str, redis_url: str) -> AsyncIterator[WaitingHorde]:
    async with running_native(migrated_database_url, redis_url) as native, Redis.from_url(redis_url) as redis:
        user = await native.user("a user", kudos=1000)
        worker = await native.user("a worker's owner")
        await worker.come_online()
        yield WaitingHorde(native, user, worker, redis, redis_url)
