import asyncpg
import redis.asyncio

from tests.support.postgres import DatabasesForTests


async def test_each_test_gets_an_empty_database_of_its_own(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("CREATE TABLE mine (id int)")
        count = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    finally:
        await connection.close()
    assert count == 1


def test_a_connection_left_open_is_reported_when_its_database_is_dropped(postgres: DatabasesForTests) -> None:
    name = postgres.create()
    assert postgres.drop(name) is True


async def test_the_stream_store_is_empty_and_asks_for_its_password(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await client.dbsize() == 0
        await client.set("key", "value", ex=60)
        assert await client.get("key") == b"value"
