import asyncio

import pytest
from redis.asyncio import Redis

from horde.chat_contract import chat_stream_key
from horde.oai import deltas
from horde.oai.delta_stream import ENTRIES_PER_READ
from horde.oai.deltas import DeltaEntry, DeltaRead, DeltaStreamReader
from tests.support.horde_streams import (
    READER_NAMES,
    HordeStreams,
    Paused,
    Running,
    arrival,
    joined,
    numbers,
    read,
    reader_is_blocked,
)
from tests.support.waiting import WaitUntil

# Reading


@pytest.mark.rule("DLT-7", "DLT-8")
async def test_a_stream_is_read_from_its_start_and_goes_on(redis: Redis, horde: HordeStreams, running: Running) -> None:
    reader = DeltaStreamReader(redis)
    first = await horde.post("one", 1, "Hel")
    async with running(reader):
        with joined(reader, "one") as one:
            assert await read(one, 1) == [DeltaEntry(first.decode(), "g1", 1, "Hel")]
            for seq in range(2, 30):
                await horde.post("one", seq)
            assert await numbers(one, 28) == list(range(2, 30))


@pytest.mark.rule("DLT-8")
async def test_a_stream_that_is_joined_late_is_read_whole(redis: Redis, horde: HordeStreams, running: Running) -> None:
    reader = DeltaStreamReader(redis)
    count = ENTRIES_PER_READ * 3 + 1
    for seq in range(1, count + 1):
        await horde.post("one", seq)
    async with running(reader):
        with joined(reader, "one") as one:
            assert await numbers(one, count) == list(range(1, count + 1))


@pytest.mark.rule("DLT-7", "DLT-8")
async def test_300_streams_at_once_each_get_their_own_entries_in_order(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reader = DeltaStreamReader(redis)
    async with running(reader):
        subscriptions = {str(number): reader.subscribe(str(number)) for number in range(300)}
        for seq in range(1, 5):
            for request_id in subscriptions:
                await horde.post(request_id, seq, f"{request_id}/{seq}")
            if seq == 2:
                for subscription in subscriptions.values():
                    subscription.join()
        for request_id, subscription in subscriptions.items():
            assert [entry.text for entry in await read(subscription, 4)] == [
                f"{request_id}/{seq}" for seq in range(1, 5)
            ]
            subscription.close()
    assert (reader._reading, reader._joining, reader._fresh) == ({}, {}, {})


async def test_only_streams_that_joined_are_read(redis: Redis, horde: HordeStreams, running: Running) -> None:
    reader = DeltaStreamReader(redis)
    async with running(reader):
        with reader.subscribe("waiting") as waiting, joined(reader, "one") as one:
            await horde.post("waiting", 1)
            await horde.post("one", 1)
            await read(one, 1)
            assert waiting.take() == []
            assert list(reader._reading) == [chat_stream_key("one").encode()]

            waiting.join()
            waiting.join()
            assert await numbers(waiting, 1) == [1]


async def test_a_subscription_that_is_left_leaves_the_read_once(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    reader = DeltaStreamReader(redis)
    async with running(reader):
        with joined(reader, "one") as one, joined(reader, "two") as two:
            await reader_is_blocked(horde, wait_until)
            one.close()
            one.close()
            one.join()
            await horde.post("one", 1)
            await horde.post("two", 1)
            await read(two, 1)
            assert one.take() == []
        with joined(reader, "one") as again:
            assert await numbers(again, 1) == [1]
    assert (reader._reading, reader._joining, reader._fresh) == ({}, {}, {})


async def test_of_two_subscriptions_of_one_request_one_is_read_and_the_other_stops(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reader = DeltaStreamReader(redis)
    async with running(reader):
        with joined(reader, "one") as one, joined(reader, "one") as other:
            assert other.stopped
            other.close()
            await horde.post("one", 1)
            assert await numbers(one, 1) == [1]


@pytest.mark.rule("DLT-7", "DLT-10")
async def test_the_reader_blocks_in_one_read_and_sends_no_ping(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    await redis.config_resetstat()
    reader = DeltaStreamReader(redis)
    async with running(reader):
        with joined(reader, "one"), joined(reader, "two"):
            await reader_is_blocked(horde, wait_until)
            (client,) = await horde.clients(READER_NAMES[0])
            assert client["cmd"] == "xread"
    statistics = await redis.info("commandstats")
    assert "cmdstat_xread" in statistics
    assert "cmdstat_ping" not in statistics


# Joining and coalescing


async def test_a_stream_joins_although_the_blocking_read_is_under_way(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A read that lasted to its end would outlast the test.
    monkeypatch.setattr(deltas, "BLOCK_MILLISECONDS", 60_000)
    reader = DeltaStreamReader(redis, read_timeout_seconds=120)
    async with running(reader):
        with joined(reader, "one"), joined(reader, "two") as two:
            await reader_is_blocked(horde, wait_until)
            with joined(reader, "three") as three:
                await wait_until(lambda: len(reader._reading) == 3, description="the third stream in the read")
                await horde.post("three", 1)
                assert await numbers(three, 1) == [1]
                await horde.post("two", 1)
                assert await numbers(two, 1) == [1]


async def test_first_entries_are_not_delayed_while_entries_gather(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    reader = DeltaStreamReader(redis, coalesce_seconds=60, read_timeout_seconds=120)
    async with running(reader):
        with joined(reader, "busy") as busy, joined(reader, "fresh") as fresh, joined(reader, "third") as third:
            await wait_until(lambda: len(reader._reading) == 3, description="three streams in the read")
            await horde.post("busy", 1)
            assert await numbers(busy, 1) == [1]

            # The pause of a minute has begun.
            await horde.post("busy", 2)
            await horde.post("fresh", 1)
            assert await numbers(fresh, 1) == [1]
            await horde.post("third", 1)
            assert await numbers(third, 1) == [1]
            with joined(reader, "late") as late:
                await horde.post("late", 1)
                assert await numbers(late, 1) == [1]
            assert busy.take() == []
            assert [entry.seq for entry in await busy.drain()] == [2]


async def test_entries_that_come_often_are_read_together(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    reads: list[DeltaRead] = []
    reader = DeltaStreamReader(redis, coalesce_seconds=0.2, on_read=reads.append)
    async with running(reader):
        with joined(reader, "one") as one:
            await reader_is_blocked(horde, wait_until)
            for seq in range(1, 61):
                await horde.post("one", seq)
            assert await numbers(one, 60) == list(range(1, 61))
    assert len(reads) < 10


# Draining


async def test_a_drain_returns_what_is_queued_and_what_is_in_the_stream(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reader = DeltaStreamReader(redis, coalesce_seconds=60, read_timeout_seconds=120)
    async with running(reader):
        with joined(reader, "one") as one:
            await horde.post("one", 1)
            await arrival(one)
            for seq in range(2, 200):
                await horde.post("one", seq)
            assert [entry.seq for entry in await one.drain()] == list(range(1, 200))
            assert await one.drain() == []


async def test_drains_and_the_blocking_read_bring_no_entry_twice(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reader = DeltaStreamReader(redis, coalesce_seconds=0)
    async with running(reader):
        with joined(reader, "one") as one:
            seen: list[int] = []
            for seq in range(1, 200):
                await horde.post("one", seq)
                seen += [entry.seq for entry in await one.drain()]
            assert seen == list(range(1, 200))


async def test_a_drain_without_a_join_or_a_running_reader_reads_nothing(redis: Redis, horde: HordeStreams) -> None:
    reader = DeltaStreamReader(redis)
    await horde.post("one", 1)
    with reader.subscribe("one") as one:
        assert await one.drain() == []
        one.join()
        assert await one.drain() == []


@pytest.mark.parametrize("read_timeout_seconds", [0.1, 60], ids=["the read fails first", "the drain ends first"])
async def test_a_drain_ends_when_the_server_does_not_answer(
    redis: Redis, horde: HordeStreams, running: Running, paused: Paused, read_timeout_seconds: float
) -> None:
    reader = DeltaStreamReader(redis, read_timeout_seconds=read_timeout_seconds)
    async with running(reader):
        with joined(reader, "one") as one:
            await horde.post("one", 1)
            await arrival(one)
            with paused():
                async with asyncio.timeout(30):
                    assert [entry.seq for entry in await one.drain()] == [1]


# Telemetry and clean ends


@pytest.mark.rule("SPN-2", "SPN-3", "SPN-4", "SPN-5")
async def test_each_read_that_returned_entries_is_described(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reads: list[DeltaRead] = []
    reader = DeltaStreamReader(redis, on_read=reads.append, clock=lambda: 1002.5)
    fields: dict[str, object] = {"gen": "g1", "seq": 1, "text": "größe"}
    await horde.add("one", fields, entry_id="1000500-0")
    await horde.add("one", {**fields, "seq": 2}, entry_id="1001000-0")
    async with running(reader):
        with joined(reader, "one") as one:
            await read(one, 2)
            assert await one.drain() == []
    size = len("gen" + "g1" + "seq" + "1" + "text") + len("größe".encode())
    assert reads == [DeltaRead(2, 2 * size, 2.0)]


async def test_a_reader_that_ends_leaves_no_connection_and_no_waiting_drain(
    redis: Redis,
    horde: HordeStreams,
    running: Running,
    paused: Paused,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deltas, "DRAIN_SECONDS", 60)
    reader = DeltaStreamReader(redis)
    async with running(reader):
        one = joined(reader, "one")
        await reader_is_blocked(horde, wait_until)
        assert [len(await horde.clients(name)) for name in READER_NAMES] == [1, 1]
        with paused():
            drain = asyncio.create_task(one.drain())
            await wait_until(lambda: reader._last_reads, description="the drain's wait")
    async with asyncio.timeout(30):
        assert await drain == []
    one.close()

    async def nobody_is_there() -> bool:
        return not any([await horde.clients(name) for name in READER_NAMES])

    await wait_until(nobody_is_there, description="the connections' end")
