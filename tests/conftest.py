"""Fixtures of every test: real servers on demand, and a look at what each test leaves behind."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.support.folders import TEST_FILES, server_folder
from tests.support.leaks import lingering_sockets, open_sockets, unfinished_tasks
from tests.support.postgres import DatabasesForTests
from tests.support.valkey import StreamStoreForTests
from tests.support.waiting import WaitUntil
from tests.support.waiting import wait_until as wait_until_it_holds

# Importing the SDK writes debug lines through Loguru's default sink before any program could configure it.
os.environ.setdefault("LOGURU_LEVEL", "INFO")
# What tests write stays in the checkout.
TEST_FILES.mkdir(parents=True, exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(TEST_FILES))
# How long an example takes says how busy the machine is; a test that hangs has pytest's own limit.
settings.register_profile("horde", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("horde")


@pytest.fixture(scope="session")
def postgres() -> Iterator[DatabasesForTests]:
    """A PostgreSQL server, started when the first test of this process needs it."""
    with server_folder("postgres") as folder, DatabasesForTests(folder) as databases:
        yield databases


@pytest.fixture
def database_url(postgres: DatabasesForTests) -> Iterator[str]:
    """Address (asyncpg DSN) of an empty database of the test's own."""
    yield from _lend(postgres, postgres.create())


@pytest.fixture
def migrated_database_url(postgres: DatabasesForTests) -> Iterator[str]:
    """Address (asyncpg DSN) of a database of the test's own with the Horde's tables."""
    yield from _lend(postgres, postgres.create_migrated())


def _lend(databases: DatabasesForTests, name: str) -> Iterator[str]:
    yield databases.url_of(name)
    if not databases.drop(name):
        pytest.fail("the test left connections to its database open")


@pytest.fixture(scope="session")
def stream_store() -> Iterator[StreamStoreForTests]:
    """A Valkey server, started when the first test of this process needs it."""
    with server_folder("valkey") as folder, StreamStoreForTests(folder) as store:
        yield store


@pytest.fixture
def redis_url(stream_store: StreamStoreForTests) -> Iterator[str]:
    """Address of an empty Valkey; a key without an expiry that the test left there fails it."""
    yield stream_store.url
    if lasting := stream_store.empty():
        pytest.fail(f"keys without an expiry: {', '.join(lasting)}")


@pytest.fixture
def wait_until() -> WaitUntil:
    """The bounded wait for a condition, awaited with a predicate and a description."""
    return wait_until_it_holds


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> None:
    """Check after each asynchronous test, once its fixtures are closed, that no task and no socket of it is left."""
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("_leak_check")


@pytest.fixture
async def _leak_check() -> AsyncIterator[None]:
    tasks = asyncio.all_tasks()
    sockets = open_sockets()
    yield
    if left := await unfinished_tasks(tasks):
        pytest.fail("tasks left running:\n" + "\n".join(left))
    if lingering := await lingering_sockets(sockets):
        pytest.fail(f"sockets left open: {len(lingering)}")
