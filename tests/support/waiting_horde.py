"""A real Horde whose requests wait, and clients of its fronts that are in the middle of a request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from redis.asyncio import Redis

from tests.support.native_server import MODEL, Caller, NativeServer
from tests.support.waiting import wait_until

__all__ = ["WaitingHorde"]

SECRET = "a secret that all fronts share"


@dataclass(slots=True)
class WaitingHorde:
    """A Horde with a worker that takes no job, and its users.

    Attributes:
        native: The Horde.
        user: A user with kudos.
        worker: The worker's owner.
        redis: A client of its stream store.
        redis_url: The stream store.
        ended: How the clients' requests ended: a status, or the name of an exception.
    """

    native: NativeServer
    user: Caller
    worker: Caller
    redis: Redis
    redis_url: str
    ended: list[int | str] = field(default_factory=list)

    @property
    def front_settings(self) -> dict[str, object]:
        """Settings of a front that is taken for dead soon."""
        return {"redis_url": self.redis_url, "open_requests_secret": SECRET, "front_lease_seconds": 0.5}

    async def states(self) -> dict[str, int]:
        """Return how many requests of the database are in which state."""
        rows = await self.native.pool.fetch("SELECT state, count(*) AS count FROM chat_requests GROUP BY state")
        return {row["state"]: row["count"] for row in rows}

    async def records(self) -> dict[bytes, bytes]:
        """Return the records of open requests of all fronts."""
        found: dict[bytes, bytes] = {}
        async for key in self.redis.scan_iter(match="horde:oai:*:open:*"):
            found |= cast("dict[bytes, bytes]", await self.redis.hgetall(key))
        return found

    async def leases(self) -> list[bytes]:
        """Return the fronts that have a lease, or had one and were not taken over."""
        found: list[bytes] = []
        async for key in self.redis.scan_iter(match="horde:oai:*:fronts"):
            found += cast("list[bytes]", await self.redis.zrange(key, 0, -1))
        return found

    @contextlib.asynccontextmanager
    async def clients(self, front_url: str, count: int) -> AsyncIterator[None]:
        """Run clients that each have a request open, every other one streamed; yield when all are queued and noted."""
        before = (await self.states()).get("waiting", 0)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(count):
                group.create_task(self._ask(session, front_url, streamed=number % 2 == 0), name="test - client")

            async def all_queued() -> bool:
                return (await self.states()).get("waiting", 0) == before + count

            await wait_until(all_queued, description="the requests to be queued", seconds=20)
            yield

    async def _ask(self, session: aiohttp.ClientSession, url: str, *, streamed: bool) -> None:
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": streamed}
        headers = {"Authorization": f"Bearer {self.user.api_key}"}
        try:
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                text = await response.text()
                self.ended.append("error event" if streamed and '"error"' in text else response.status)
        except aiohttp.ClientError as error:
            self.ended.append(type(error).__name__)
