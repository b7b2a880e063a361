"""The delta reader when servers fail, and when what they hold is not what it should be."""

import pytest
from redis.asyncio import Redis

from horde.chat_contract import chat_stream_key
from horde.oai.delta_stream import MAX_QUEUED_BYTES, MAX_QUEUED_ENTRIES
from horde.oai.deltas import DeltaStreamReader
from tests.support.horde_streams import (
    READER_NAMES,
    HordeStreams,
    Paused,
    Running,
    joined,
    numbers,
    quick_reader,
    reader_is_blocked,
)
from tests.support.waiting import WaitUntil

# Servers that fail


@pytest.mark.rule("DLT-11")
async def test_nothing_is_missed_or_read_twice_over_killed_connections(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil, log: list[str]
) -> None:
    reader = quick_reader(redis)
    async with running(reader):
        with joined(reader, "one") as one:
            for round_number in range(4):
                await reader_is_blocked(horde, wait_until)
                for name in READER_NAMES:
                    await horde.kill(name)
                for seq in range(1, 11):
                    await horde.post("one", round_number * 10 + seq)
                assert await numbers(one, 10) == [round_number * 10 + seq for seq in range(1, 11)]
                with joined(reader, f"other {round_number}") as other:
                    await horde.post(f"other {round_number}", 1)
                    assert await numbers(other, 1) == [1]
    lost = [line for line in log if line.startswith("The delta reader lost Redis")]
    assert len(lost) == 4


@pytest.mark.rule("DLT-9", "DLT-11")
async def test_a_read_that_is_not_answered_is_abandoned_and_made_again(
    redis: Redis, horde: HordeStreams, running: Running, paused: Paused, wait_until: WaitUntil, log: list[str]
) -> None:
    reader = quick_reader(redis)
    async with running(reader):
        with joined(reader, "one") as one:
            await horde.post("one", 1)
            assert await numbers(one, 1) == [1]
            await reader_is_blocked(horde, wait_until)
            with paused():
                late = joined(reader, "two")
                await wait_until(lambda: len(log) >= 2, description="two abandoned reads")
            await horde.post("one", 2)
            await horde.post("two", 1)
            assert await numbers(one, 1) == [2]
            assert await numbers(late, 1) == [1]
            late.close()


async def test_a_paused_server_delays_entries_and_loses_none(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reader = DeltaStreamReader(redis)
    async with running(reader):
        with joined(reader, "one") as one:
            await redis.client_pause(300, all=True)
            await horde.post("one", 1)
            assert await numbers(one, 1) == [1]


@pytest.mark.rule("DLT-12")
async def test_a_flushed_server_yields_neither_entries_nor_an_error(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil, log: list[str]
) -> None:
    reader = quick_reader(redis)
    async with running(reader):
        with joined(reader, "one") as one, joined(reader, "two") as two:
            await horde.post("one", 1)
            assert await numbers(one, 1) == [1]
            await reader_is_blocked(horde, wait_until)
            await redis.flushall()
            await horde.post("two", 1)
            assert await numbers(two, 1) == [1]
            assert one.take() == []
            assert not one.stopped
    assert log == []


@pytest.mark.rule("DLT-13")
async def test_a_stream_made_anew_with_lower_ids_yields_no_entries(
    redis: Redis, horde: HordeStreams, running: Running
) -> None:
    reader = quick_reader(redis)
    async with running(reader):
        with joined(reader, "one") as one:
            fields: dict[str, object] = {"gen": "g1", "seq": 1, "text": "x"}
            await horde.add("one", fields, entry_id="5000-1")
            assert await numbers(one, 1) == [1]
            await redis.delete(chat_stream_key("one"))
            await horde.add("one", {**fields, "seq": 2}, entry_id="4000-0")
            await horde.add("one", {**fields, "seq": 3}, entry_id="5000-1")
            await horde.add("one", {**fields, "seq": 4}, entry_id="5000-2")
            assert await numbers(one, 1) == [4]


async def test_a_reader_without_a_server_stays_quiet_and_holds_nobody_up(
    running: Running, log: list[str], wait_until: WaitUntil
) -> None:
    async with Redis(host="127.0.0.1", port=1) as nowhere:
        reader = quick_reader(nowhere)
        async with running(reader):
            with joined(reader, "one") as one:
                for _ in range(20):
                    assert await one.drain() == []
                await wait_until(lambda: log, description="a line about the outage")
                assert not one.stopped
    assert len(log) == 1


# Entries and keys that are not what they should be


async def test_malformed_entries_are_ignored_and_counted(
    redis: Redis, horde: HordeStreams, running: Running, log: list[str]
) -> None:
    reader = DeltaStreamReader(redis)
    malformed: list[dict[str, object]] = [
        {"gen": "g1"},
        {"gen": b"\xff\xfe", "seq": 1, "text": "x"},
        {"gen": "g1", "seq": "one", "text": "x"},
        {"gen": "g1", "seq": 1, "text": b"\xed\xa0\x80"},
        {"ended": "faulted"},
        {"unknown": b"\xff"},
    ]
    async with running(reader):
        with joined(reader, "one") as one:
            for fields in malformed:
                await horde.add("one", fields)
            await horde.post("one", 1)
            assert await numbers(one, 1) == [1]
    assert reader.ignored_entry_count == len(malformed)
    assert len(log) == 1


async def test_at_its_bound_of_entries_a_subscription_stops_for_good(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    reader = DeltaStreamReader(redis, coalesce_seconds=0)
    async with redis.pipeline(transaction=False) as pipeline:
        for seq in range(1, MAX_QUEUED_ENTRIES + 100):
            pipeline.xadd(chat_stream_key("slow"), {"gen": "g1", "seq": seq, "text": "x"})
        pipeline.expire(chat_stream_key("slow"), 60)
        await pipeline.execute()
    async with running(reader):
        with joined(reader, "slow") as slow, joined(reader, "quick") as quick:
            await wait_until(lambda: slow.stopped, description="the bound")
            assert slow.arrived
            assert [entry.seq for entry in slow.take()] == list(range(1, MAX_QUEUED_ENTRIES + 1))

            await horde.post("slow", 9999)
            await horde.post("quick", 1)
            assert await numbers(quick, 1) == [1]
            assert slow.take() == await slow.drain() == []
            assert list(reader._reading) == [chat_stream_key("quick").encode()]


async def test_at_its_bound_of_bytes_a_subscription_stops_for_good(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    reader = DeltaStreamReader(redis)
    async with running(reader):
        with joined(reader, "one") as one:
            for seq in range(1, 20):
                await horde.post("one", seq, "x" * 65_000)
            await wait_until(lambda: one.stopped, description="the bound")
            assert [entry.seq for entry in one.take()] == list(range(1, MAX_QUEUED_BYTES // 65_000 + 1))


async def test_taking_entries_makes_room_for_more(redis: Redis, horde: HordeStreams, running: Running) -> None:
    reader = DeltaStreamReader(redis, coalesce_seconds=0)
    async with running(reader):
        with joined(reader, "one") as one:
            for seq in range(1, 40):
                await horde.post("one", seq, "x" * 65_000)
                assert await numbers(one, 1) == [seq]
            assert not one.stopped


async def test_a_key_that_holds_no_stream_stops_its_subscription_alone(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    reader = quick_reader(redis)
    await redis.set(chat_stream_key("early"), "no stream", ex=60)
    async with running(reader):
        with joined(reader, "early") as early, joined(reader, "late") as late, joined(reader, "one") as one:
            await wait_until(lambda: early.stopped, description="the end of the unreadable stream")
            await reader_is_blocked(horde, wait_until)
            await horde.post("late", 1)
            assert await numbers(late, 1) == [1]
            await redis.set(chat_stream_key("late"), "no stream", ex=60)
            await wait_until(lambda: late.stopped, description="the end of the stream that became unreadable")
            await horde.post("one", 1)
            assert await numbers(one, 1) == [1]
