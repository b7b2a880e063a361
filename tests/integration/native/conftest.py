"""A Horde for each test that asks for one."""

from collections.abc import AsyncIterator

import pytest

from tests.support.native_server import Caller, NativeServer, running_native


@pytest.fixture
async def native(migrated_database_url: str, redis_url: str) -> AsyncIterator[NativeServer]:
    """A Horde with a database and a stream store of its own."""
    async with running_native(migrated_database_url, redis_url) as server:
        yield server


@pytest.fixture
async def owner(native: NativeServer) -> Caller:
    """The owner of workers."""
    return await native.user("owner")


@pytest.fixture
async def client(native: NativeServer) -> Caller:
    """Somebody with kudos who submits."""
    return await native.user("client", kudos=1000)
