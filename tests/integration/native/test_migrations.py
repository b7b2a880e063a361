import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from horde.native.db.engine import create_pool, migrate
from horde.native.db.tables import metadata

_DETAILS = """
SELECT conrelid::regclass::text || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND conrelid::regclass::text <> 'alembic_version'
UNION ALL
SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
UNION ALL
SELECT table_name || '.' || column_name || ' ' || udt_name || ' ' || is_nullable || ' ' || coalesce(column_default, '')
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
ORDER BY 1
"""


async def _on_engine[Result](url: str, work: Callable[[Connection], Result]) -> Result:
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


async def _details(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        return [row[0] for row in await connection.fetch(_DETAILS)]
    finally:
        await connection.close()


async def test_migrations_and_tables_give_one_schema(migrated_database_url: str, database_url: str) -> None:
    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))

    await _on_engine(database_url, metadata.create_all)

    assert await _on_engine(migrated_database_url, differences) == []
    assert await _details(migrated_database_url) == await _details(database_url)


async def test_processes_that_start_together_migrate_once(database_url: str) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(asyncio.to_thread(migrate, database_url), name=f"test - migration {number}")

    pool = await create_pool(database_url, size=1)
    try:
        assert await pool.fetchval("SELECT count(*) FROM users") == 1
    finally:
        await pool.close()


async def test_a_row_of_the_ledger_cannot_be_changed(migrated_database_url: str) -> None:
    connection = await asyncpg.connect(migrated_database_url)
    try:
        await connection.execute("INSERT INTO ledger (kind, source, target, amount) VALUES ('grant', -1, 0, 5)")

        for statement in ("UPDATE ledger SET amount = 6", "DELETE FROM ledger", "TRUNCATE ledger"):
            with pytest.raises(asyncpg.RaiseError, match="append-only"):
                await connection.execute(statement)
    finally:
        await connection.close()
