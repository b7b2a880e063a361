"""PostgreSQL killed and started again under load: what was committed is there, and everything ends once."""

import asyncio
import functools
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from horde.local.postgres import LocalPostgres
from horde.native.db.engine import create_pool, migrate
from tests.support.database_proxy import DatabaseProxy, database_proxy
from tests.support.native_invariants import broken_invariants
from tests.support.native_server import Answer, Caller, running_native
from tests.support.waiting import wait_until

_CLIENTS, _REQUESTS_EACH, _WORKERS = 8, 6, 4
_KILLED_AFTER = 10
"""Replies after which the database is killed."""

_PATIENCE_SECONDS = 40.0
"""Longest time a caller calls again for."""

_DATABASE = "horde"


async def _until_known(call: Callable[[], Awaitable[Answer]], failures: Counter[int]) -> Answer:
    """Call until the answer is one of the Horde's: with its own code, or a success."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            answer = await call()
            if answer.status < 500 or answer.rc is not None:
                return answer
            failures[answer.status] += 1
            await asyncio.sleep(0.05)


async def _client(caller: Caller, delivered: Counter[str], failures: Counter[int]) -> None:
    """Submit and wait, one request after the other, as a front does."""
    for _ in range(_REQUESTS_EACH):
        key = str(uuid4())
        answer = await _until_known(lambda key=key: caller.submit(operation_key=key), failures)  # type: ignore[misc] # a default binds the name
        assert answer.status in {200, 202}, answer
        path = f"/v2/generate/chat/status/{answer.body['id']}"
        while True:
            status = await _until_known(lambda path=path: caller.call("GET", path), failures)  # type: ignore[misc] # likewise
            assert status.status == 200, status
            if status.body["done"]:
                break
            await asyncio.sleep(0.02)
        assert status.body["finished"] == 1, status
        delivered[key] += 1


async def _worker(owner: Caller, name: str, replies: Counter[str], failures: Counter[int]) -> None:
    """Pop and reply until it is stopped, as a worker does: the same pop again until it is answered."""
    while True:
        pop_id = str(uuid4())
        answer = await _until_known(
            lambda pop_id=pop_id: owner.pop(name=name, pop_id=pop_id, running=[], wait_seconds=1),  # type: ignore[misc] # likewise
            failures,
        )
        job = answer.body
        if job["id"] is None:
            continue
        await _until_known(lambda job=job: owner.reply(job), failures)  # type: ignore[misc] # likewise
        replies[job["id"]] += 1


async def _restart(server: LocalPostgres, proxy: DatabaseProxy, replies: Counter[str]) -> None:
    """Kill the database in the middle of it all, and start it again a moment later."""
    await wait_until(lambda: len(replies) >= _KILLED_AFTER, description="some replies")
    server.process.send_signal(signal.SIGKILL)
    await server.process.wait()
    proxy.cut_all()
    await server.start()
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy.target = (parts.hostname, parts.port)


async def _load(
    client: Caller,
    owner: Caller,
    restart: Callable[[], Coroutine[None, None, None]],
    delivered: Counter[str],
    replies: Counter[str],
    failures: Counter[int],
) -> None:
    """Let clients and workers work until every client has its replies, with the restart in the middle."""
    async with asyncio.TaskGroup() as group:
        workers = [
            group.create_task(_worker(owner, f"worker-{number}", replies, failures), name="test - worker")
            for number in range(_WORKERS)
        ]
        async with asyncio.TaskGroup() as clients:
            clients.create_task(restart(), name="test - restart")
            for _ in range(_CLIENTS):
                clients.create_task(_client(client, delivered, failures), name="test - client")
        for worker in workers:
            worker.cancel()


@pytest.mark.rule("KUD-16", "SUB-2")
async def test_a_database_that_is_killed_under_load_loses_and_doubles_nothing(tmp_path: Path, redis_url: str) -> None:
    async with LocalPostgres(tmp_path) as server:
        url = await server.create_database(_DATABASE)
        await asyncio.to_thread(migrate, url)
        delivered: Counter[str] = Counter()
        replies: Counter[str] = Counter()
        failures: Counter[int] = Counter()
        async with (
            database_proxy(url) as proxy,
            running_native(proxy.url, redis_url, database_timeout_seconds=2.0) as native,
        ):
            client, owner = await native.user("a client", kudos=1000), await native.user("an owner")
            await owner.come_online(name="worker-0")
            restart = functools.partial(_restart, server, proxy, replies)
            await _load(client, owner, restart, delivered, replies, failures)
        pool = await create_pool(server.url_of(_DATABASE), size=1)
        try:
            assert await broken_invariants(pool) == {}
            submitted = await pool.fetchval("SELECT count(*) FROM chat_requests")
        finally:
            await pool.close()
    assert failures, "the outage was not noticed"
    assert submitted == len(delivered) == _CLIENTS * _REQUESTS_EACH
