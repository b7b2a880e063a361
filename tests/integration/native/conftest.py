"""A Horde for each test that asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.native_server import Caller, NativeServer, running_native
from tests.support.picture_server import PictureServer, serving_pictures


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


@pytest.fixture
async def pictures() -> AsyncIterator[PictureServer]:
    """A server of pictures, on this machine."""
    async with serving_pictures() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of a Horde's pictures."""
    return tmp_path / "pictures"


@pytest.fixture
async def picturing(migrated_database_url: str, redis_url: str, store: Path) -> AsyncIterator[NativeServer]:
    """A Horde that keeps pictures, and may fetch them from this machine."""
    settings: dict[str, object] = {"image_store": str(store), "image_networks": "127.0.0.1"}
    async with running_native(migrated_database_url, redis_url, **settings) as server:
        yield server
