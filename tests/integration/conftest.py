"""The real parts together: PostgreSQL, Valkey, native Horde and front over HTTP."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from tests.support.native_server import Caller, NativeServer, running_native
from tests.support.serving import serving


@dataclass(frozen=True, slots=True)
class Chain:
    """A front over a native Horde.

    Attributes:
        base_url: OpenAI base URL of the front.
        native: The Horde.
        user: A user with kudos.
        worker: Another user, who owns workers.
    """

    base_url: str
    native: NativeServer
    user: Caller
    worker: Caller

    @property
    def api_key(self) -> str:
        """The user's key."""
        assert self.user.api_key is not None
        return self.user.api_key


@pytest.fixture
async def chain(migrated_database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Chain]:
    """A front over a native Horde that stores images, with a user and a worker's owner."""
    async with running_native(migrated_database_url, redis_url, image_store=str(tmp_path / "images")) as native:
        settings = FrontSettings(horde_urls=(native.api_url,), redis_url=redis_url, drain_accept_seconds=0)
        user = await native.user("a user", kudos=1000)
        worker = await native.user("a worker's owner")
        async with serving(create_app(settings)) as url:
            yield Chain(f"{url}/v1", native, user, worker)
