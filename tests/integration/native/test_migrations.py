import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from horde_sdk.worker.chat_declaration import ChatImageTransport
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from horde.native.db.engine import create_pool, migrate
from horde.native.db.tables import metadata
from tests.support.native_server import running_native, seeing
from tests.support.picture_server import encode_picture, image_message

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


async def test_images_come_to_a_filled_database_and_what_waits_is_served(
    migrated_database_url: str, tmp_path: Path
) -> None:
    async with running_native(migrated_database_url) as before:
        owner, client = await before.user("owner"), await before.user("client", kudos=100)
        await owner.come_online()
        waiting = await client.submit_id()
        await before.pool.execute("DROP TABLE chat_images, horde_secrets")
        await before.pool.execute("UPDATE alembic_version SET version_num = '0003'")

    await asyncio.to_thread(migrate, migrated_database_url)

    async with running_native(migrated_database_url, image_store=str(tmp_path / "images")) as after:
        secrets = await after.pool.fetch("SELECT name, octet_length(value) AS size FROM horde_secrets")
        assert [tuple(row) for row in secrets] == [("image_urls", 32)]
        owner, client = after.caller(owner.api_key), after.caller(client.api_key)
        await owner.reply(await owner.pop_job())
        assert (await client.status(waiting))["finished"] == 1
        pixel = f"data:image/png;base64,{base64.b64encode(encode_picture((1, 1))).decode()}"
        await client.submit_id(messages=[image_message(pixel)])
        job = await owner.pop_job(declared=seeing(ChatImageTransport.URL))
        assert (await owner.reply(job)).status == 200


async def test_each_horde_signs_with_a_key_of_its_own(migrated_database_url: str, database_url: str) -> None:
    await asyncio.to_thread(migrate, database_url)
    keys = set()
    for url in (migrated_database_url, database_url):
        connection = await asyncpg.connect(url)
        try:
            keys.add(await connection.fetchval("SELECT value FROM horde_secrets WHERE name = 'image_urls'"))
        finally:
            await connection.close()
    assert len(keys) == 2
