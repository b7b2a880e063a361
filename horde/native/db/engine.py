"""Connections to PostgreSQL: the pool that serves requests, and the migrations."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import sqlalchemy
import sqlalchemy.exc
from alembic import command
from alembic.config import Config
from loguru import logger
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

__all__ = [
    "DATABASE_ERRORS",
    "DatabaseError",
    "Pool",
    "afterwards",
    "create_pool",
    "migrate",
    "migration_config",
    "open_pool",
    "prepare_database",
]

type Pool = asyncpg.Pool[asyncpg.Record]
"""The pool of connections."""

DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # A connection that is lost in the middle of an answer leaves asyncpg's protocol in a state that it reports so.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Whatever a statement raises when the database refuses it, does not answer, or is gone."""

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

_MIGRATION_LOCK: Final = 0x686F7264
"""Key of the advisory lock under which one process at a time migrates."""

_CONNECT_SECONDS: Final = 10.0
"""Longest time the first connection may take."""

_CLOSE_SECONDS: Final = 5.0
"""Time that connections have to come back when the pool is closed, before they are cut."""

_QUERIES_PER_CONNECTION: Final = 50_000
"""A connection is renewed after so many statements."""

_MIGRATION_SECONDS: Final = 600
"""A lock that another process holds longer than this is a fault, not a migration."""


@contextlib.contextmanager
def afterwards(what: str) -> Iterator[None]:
    """Do what follows a commit: when the database fails it, that is logged, and the answer stays what was committed.

    Args:
        what: What is done, for the log.
    """
    try:
        yield
    except DATABASE_ERRORS as error:
        logger.warning("The database failed after a commit, at {} ({})", what, type(error).__name__)


class _BoundedPool(asyncpg.Pool):
    """A pool for whose connections nobody waits without an end: an overloaded Horde says so instead of queueing.

    Attributes:
        acquire_seconds: Longest wait for a free connection.
    """

    acquire_seconds: float = 10.0

    def acquire(self, *, timeout: float | None = None) -> "asyncpg.pool.PoolAcquireContext[asyncpg.Record]":
        """Lend a connection; the wait is bounded also where the caller names no bound."""
        return super().acquire(timeout=self.acquire_seconds if timeout is None else timeout)


@contextlib.asynccontextmanager
async def open_pool(
    url: str,
    *,
    size: int = 10,
    timeout_seconds: float = 10.0,
    application_name: str = "horde-native",
) -> AsyncIterator[Pool]:
    """Connect to the Horde's database for as long as the context is open; see :func:`create_pool`."""
    pool = await create_pool(url, size=size, timeout_seconds=timeout_seconds, application_name=application_name)
    try:
        yield pool
    finally:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await pool.close()
        except TimeoutError:
            pool.terminate()


async def create_pool(
    url: str,
    *,
    size: int = 10,
    timeout_seconds: float = 10.0,
    application_name: str = "horde-native",
) -> Pool:
    """Connect to the Horde's database.

    Every statement has a time limit, in the client and in the server, so that no request hangs on a database that has
    stopped answering; a transaction that its client forgot is ended by the server.

    Args:
        url: Address, ``postgresql://user:password@host:port/database``.
        size: The most connections this process opens.
        timeout_seconds: Longest time a statement, getting connected, or the wait for a free connection may take.
        application_name: Name in the server's list of connections.

    Raises:
        OSError: The server cannot be reached.
        asyncpg.PostgresError: It refused the connection.
    """
    milliseconds = str(round(timeout_seconds * 1000))
    pool = _BoundedPool(
        url,
        connection_class=asyncpg.Connection,
        record_class=asyncpg.Record,
        loop=None,
        min_size=min(2, size),
        max_size=size,
        max_queries=_QUERIES_PER_CONNECTION,
        max_inactive_connection_lifetime=60,
        reset=_keep_session,
        timeout=timeout_seconds,
        command_timeout=timeout_seconds,
        server_settings={
            "application_name": application_name,
            "statement_timeout": milliseconds,
            "lock_timeout": milliseconds,
            "idle_in_transaction_session_timeout": milliseconds,
            "jit": "off",
            # Planning a transition costs more than running it, and no argument changes which plan is best.
            "plan_cache_mode": "force_generic_plan",
            # What waits in order is read from an index in that order. How many of the queue a worker fits cannot be
            # estimated, and a planner that guesses few would sort all of a model's queue for the first of them.
            "enable_sort": "off",
        },
    )
    pool.acquire_seconds = timeout_seconds
    return await pool


async def _keep_session(_connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Leave a returned connection as it is: nothing here changes a session, and resetting it costs a round trip.

    A transaction that is still open was rolled back before this is called.
    """


def migration_config() -> Config:
    """Return alembic's configuration: there is no ini file, the connection is handed over by :func:`migrate`."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def migrate(url: str) -> None:
    """Bring a database to the newest schema; does nothing when it is there already.

    Processes that start together migrate once: the others wait for an advisory lock and find nothing to do. Blocks,
    and runs an event loop of its own: call it in a thread (``asyncio.to_thread``) where one is running.

    Args:
        url: Address, as for :func:`create_pool`.

    Raises:
        OSError: The server cannot be reached.
        sqlalchemy.exc.DBAPIError: It refused the connection or a statement.
    """
    asyncio.run(_migrate(url))


class DatabaseError(Exception):
    """The database cannot be used; the message is one sentence for the person who started the program."""


def prepare_database(url: str, migrates: bool) -> None:  # noqa: FBT001 - called in a thread, by position
    """Make sure that the database can be used, with the newest schema.

    Args:
        url: Address, as for :func:`create_pool`.
        migrates: Bring it to the newest schema; else only connect.

    Raises:
        DatabaseError: It cannot be reached, or refused the connection or a migration.
    """
    try:
        if migrates:
            migrate(url)
        else:
            asyncio.run(_connect_once(url))
    except (OSError, TimeoutError, asyncpg.PostgresError, sqlalchemy.exc.SQLAlchemyError, ValueError) as error:
        cause = getattr(error, "orig", None) or error
        reason = str(cause).partition("\n")[0] or type(cause).__name__
        raise DatabaseError(f"The database of HORDE_NATIVE_DATABASE_URL cannot be used: {reason}") from error


async def _connect_once(url: str) -> None:
    connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS)
    await connection.close()


async def _migrate(url: str) -> None:
    address = make_url(url).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(address, poolclass=NullPool, connect_args={"timeout": _CONNECT_SECONDS})
    try:
        async with asyncio.timeout(_MIGRATION_SECONDS), engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: sqlalchemy.Connection) -> None:
    # Held to the end of the transaction, as all migrations are one: a failed one leaves the schema as it was.
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    config = migration_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
