import orjson
import pytest
import redis.asyncio

from horde.chat_contract import CHAT_QUEUE_KEY
from horde.native.db.engine import create_pool
from horde.native.keys import SNAPSHOT_TURN_KEY
from horde.native.snapshot import QueueKeeper
from tests.support.native_server import running_native


async def test_without_redis_everything_but_live_text_works(migrated_database_url: str) -> None:
    async with running_native(migrated_database_url) as native:
        owner, client = await native.user("an owner"), await native.user("a client", kudos=10)
        await owner.come_online()
        request_id = await client.submit_id(stream=True)
        job = await owner.pop_job(wait_seconds=20)
        assert "stream_progress" not in job["payload"]
        assert (await owner.progress(job["id"], 1, "x")).body == {"cancelled": False}
        assert (await owner.reply(job)).status == 200
        assert (await client.status(request_id))["finished"] == 1


async def test_a_stream_store_that_went_away_costs_no_reply(migrated_database_url: str, unused_tcp_port: int) -> None:
    nowhere = f"redis://127.0.0.1:{unused_tcp_port}"
    async with running_native(migrated_database_url, nowhere) as native:
        owner, client = await native.user("an owner"), await native.user("a client", kudos=10)
        await owner.come_online()
        request_id = await client.submit_id(stream=True)
        job = await owner.pop_job(wait_seconds=20)
        assert (await owner.progress(job["id"], 1, "x" * 84)).body == {"cancelled": False}
        # What was not streamed is not charged for.
        assert (await client.cancel(request_id)).body["kudos"] == 0.0
        async with native.session.get(native.base_url + "/readyz") as response:
            assert (response.status, await response.json()) == (200, {"status": "degraded", "failing": ["redis"]})


@pytest.mark.rule("NAT-7")
@pytest.mark.parametrize(
    "foreign",
    [
        b"no JSON",
        b"[]",
        b'{"queue": [], "shapes": [], "running": {}}',
        orjson.dumps({"version": 2, "queue": [], "shapes": [], "running": {}, "speeds": {}}),
        orjson.dumps({"version": 1, "queue": [["no id", [], 1, 0]], "shapes": [], "running": {}, "speeds": {}}),
    ],
)
async def test_a_shared_count_that_cannot_be_read_is_none(
    migrated_database_url: str, redis_url: str, foreign: bytes
) -> None:
    pool = await create_pool(migrated_database_url, size=1)
    store = redis.asyncio.Redis.from_url(redis_url)
    try:
        await store.set(SNAPSHOT_TURN_KEY, b"1", ex=10)
        await store.set(CHAT_QUEUE_KEY, foreign, ex=10)
        keeper = QueueKeeper(pool, store, 1.0)

        await keeper.refresh()

        # It counted by itself, and the next process can read that.
        stored = await store.get(CHAT_QUEUE_KEY)
        assert stored is not None
        assert stored != foreign
        assert orjson.loads(stored)["version"] == 1
    finally:
        await store.aclose()
        await pool.close()
