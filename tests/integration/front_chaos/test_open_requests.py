"""The registry of open requests over a real Valkey that fails, forgets, or holds what it should not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from horde.oai.cancel import CancelTarget
from horde.oai.horde_client import Caller
from horde.oai.open_records import OpenRecords
from horde.oai.open_requests import OpenRequestKeeper
from horde.oai.sealed_caller import CallerSealer
from tests.support.redis_proxy import redis_proxy
from tests.support.waiting import wait_until

SECRET = "a secret that all fronts share"
CALLER = Caller("a user's key", "app:1:none")


class CountedCancels:
    """Counts cancels; all of them are acknowledged."""

    def __init__(self, records: OpenRecords) -> None:
        self.failed_count = 0
        self.targets: list[CancelTarget] = []
        self._records = records

    async def cancel(self, target: CancelTarget) -> None:
        self.targets.append(target)
        self._records.close(target.operation_key)


class Front:
    """A front as far as the registry sees it."""

    def __init__(self, redis: Redis, *, lease_seconds: float = 0.4, secret: str = SECRET) -> None:
        self.records = OpenRecords()
        self.cancels = CountedCancels(self.records)
        self.keeper = OpenRequestKeeper(
            redis, self.records, self.cancels, CallerSealer(secret), lease_seconds=lease_seconds
        )

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run(), name="test - keeper")
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def renewed(self, times: int = 1) -> None:
        """Wait for so many more batches."""
        due = self.keeper.renewals + times
        await wait_until(lambda: self.keeper.renewals >= due, description="renewals")


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


async def recorded(redis: Redis) -> set[bytes]:
    """Return the operation keys of all records."""
    found: set[bytes] = set()
    async for key in redis.scan_iter(match="horde:oai:*:open:*"):
        found |= set(await redis.hkeys(key))  # type: ignore[arg-type] # bytes, as nothing is decoded
    return found


def records_are(redis: Redis, *keys: bytes) -> Callable[[], object]:
    async def look() -> bool:
        return await recorded(redis) == set(keys)

    return look


async def test_a_flushed_server_is_told_everything_again(redis: Redis) -> None:
    front = Front(redis)
    async with front.living():
        front.records.open("one", CALLER)
        await wait_until(records_are(redis, b"one"), description="the record")
        await redis.flushall()
        await wait_until(records_are(redis, b"one"), description="the record after the flush")


async def test_the_living_are_not_taken_for_dead_after_a_pause_of_the_server(redis: Redis) -> None:
    fronts = [Front(redis, lease_seconds=1.0) for _ in range(3)]
    async with contextlib.AsyncExitStack() as living:
        for number, front in enumerate(fronts):
            await living.enter_async_context(front.living())
            front.records.open(str(number), CALLER)
        await wait_until(records_are(redis, b"0", b"1", b"2"), description="the records")
        before = [front.keeper.renewals for front in fronts]
        # Longer than a lease and shorter than the connections' patience: nothing is noticed but the server's clock.
        await redis.client_pause(1500, all=True)
        for front in fronts:
            await front.renewed(8)
        assert all(front.keeper.renewals > count for front, count in zip(fronts, before, strict=True))
    assert [front.cancels.targets for front in fronts] == [[], [], []]


async def test_a_dead_fronts_records_go_to_exactly_one_of_many(redis: Redis) -> None:
    dead, heirs = Front(redis), [Front(redis) for _ in range(4)]
    count = 600  # More than two pages.
    async with dead.living():
        for number in range(count):
            dead.records.open(str(number), CALLER)
        expected = [str(number).encode() for number in range(count)]
        await wait_until(records_are(redis, *expected), description="the records")
    async with contextlib.AsyncExitStack() as living:
        for heir in heirs:
            await living.enter_async_context(heir.living())
        await wait_until(lambda: sum(len(heir.cancels.targets) for heir in heirs) >= count, description="the cancels")
        await wait_until(records_are(redis), description="the records to be gone")
    cancelled = [target.operation_key for heir in heirs for target in heir.cancels.targets]
    assert sorted(cancelled) == sorted(str(number) for number in range(count))
    assert {target.caller for heir in heirs for target in heir.cancels.targets} == {CALLER}


async def test_a_front_that_left_in_good_order_leaves_what_it_could_not_cancel(redis: Redis) -> None:
    leaving, heir = Front(redis, lease_seconds=60), Front(redis, lease_seconds=0.4)
    async with leaving.living():
        leaving.records.open("ended", CALLER)
        leaving.records.open("uncancelled", CALLER)
        await wait_until(records_are(redis, b"ended", b"uncancelled"), description="the records")
    leaving.records.close("ended")
    await leaving.keeper.leave()
    assert await recorded(redis) == {b"uncancelled"}
    async with heir.living():
        await wait_until(lambda: heir.cancels.targets, description="the cancel")
    assert [target.operation_key for target in heir.cancels.targets] == ["uncancelled"]


async def test_what_is_no_record_is_removed_and_cancels_nothing(redis: Redis) -> None:
    dead, heir = Front(redis), Front(redis)
    async with dead.living():
        dead.records.open("one", CALLER)
        await wait_until(records_are(redis, b"one"), description="the record")
        async for key in redis.scan_iter(match="horde:oai:*:open:*"):
            await redis.hset(key, "forged", b"\x01" + bytes(100))
    async with heir.living():
        await wait_until(lambda: heir.cancels.targets, description="the cancel")
        await wait_until(records_are(redis), description="the records to be gone")
    assert [target.operation_key for target in heir.cancels.targets] == ["one"]


async def test_an_outage_costs_few_attempts_and_no_memory(redis_url: str) -> None:
    async with (
        redis_proxy(redis_url) as proxy,
        Redis.from_url(proxy.url) as through,
        Redis.from_url(redis_url) as redis,
    ):
        front = Front(through)
        async with front.living():
            await front.renewed()
            with proxy.down():
                failed = front.keeper.failures
                await wait_until(lambda: front.keeper.failures >= failed + 4, description="failed attempts")
                for number in range(10_000):
                    front.records.open(str(number), CALLER)
                    front.records.close(str(number))
                assert not front.records.has_changes
                front.records.open("last", CALLER)
                assert front.keeper.failures < failed + 20
            await wait_until(records_are(redis, b"last"), description="the record after the outage")
