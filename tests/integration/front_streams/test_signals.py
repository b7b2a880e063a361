import asyncio
from itertools import count

import pytest
from redis.asyncio import Redis

from horde.oai.signals import CompletionSignalListener, SignalSubscription
from tests.support.horde_streams import LISTENER_NAME, HordeStreams, Paused, Running
from tests.support.waiting import WaitUntil


def quick_listener(redis: Redis) -> CompletionSignalListener:
    return CompletionSignalListener(redis, ping_seconds=0.05, ping_answer_seconds=0.1, wake_spread_seconds=0.05)


async def subscribed(listener: CompletionSignalListener, wait_until: WaitUntil) -> None:
    await wait_until(lambda: listener.alive, description="the subscription")


async def woken(subscription: SignalSubscription) -> None:
    assert await subscription.wait_within(30)


def is_awake(subscription: SignalSubscription) -> bool:
    return subscription._wake.is_set()


@pytest.mark.rule("WAI-2")
async def test_a_signal_wakes_the_wait_of_its_request_and_of_no_other(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one, listener.register("two") as two:
            await horde.signal("two", "finished")
            await woken(two)
            assert not is_awake(one)

            await horde.signal("one", "faulted")
            await woken(one)


async def test_a_signal_that_came_before_the_wait_wakes_it_at_once(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one, listener.register("mark") as mark:
            one.clear()
            await horde.signal("one", "finished")
            await horde.signal("mark", "finished")
            await woken(mark)

            await woken(one)
            await woken(one)
            one.clear()
            assert not is_awake(one)


@pytest.mark.rule("DWG-4")
async def test_what_the_signals_said_can_be_read_without_waiting(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one:
            assert (one.started, one.cancelled) == (False, False)

            async def after(event: str) -> tuple[bool, bool]:
                one.clear()
                await horde.signal("one", event)
                await woken(one)
                return one.started, one.cancelled

            assert await after("started") == (True, False)
            assert await after("requeued") == (False, False)
            assert await after("started") == (True, False)
            assert await after("finished") == (True, False)
            assert await after("cancelled") == (True, True)


async def test_messages_that_are_no_signals_are_ignored(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil, log: list[str]
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one:
            for body in (b"", b"{", b"\xff", b"[]", b"7", b'"x"', b"null", b"{}", b'{"id": "one"}'):
                await horde.publish(body)
            for request_id, event in (("one", "exploded"), ("one", None), ("one", {}), (["one"], "started")):
                await horde.signal(request_id, event)
            await horde.signal("nobody", "finished")
            assert not one.started

            await horde.signal("one", "finished")
            await woken(one)
        assert len([line for line in log if "could not be read" in line]) == 1


@pytest.mark.rule("WAI-2")
async def test_after_a_lost_connection_every_waiter_looks(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil, log: list[str]
) -> None:
    listener = quick_listener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        waiters = [listener.register(str(number)) for number in range(300)]
        for _ in range(3):
            for waiter in waiters:
                waiter.clear()
            await horde.kill(LISTENER_NAME)
            await asyncio.gather(*(woken(waiter) for waiter in waiters))
            await subscribed(listener, wait_until)
        await horde.signal("7", "started")
        await wait_until(lambda: waiters[7].started, description="a signal after the outage")
        for waiter in waiters:
            waiter.close()
    assert [line.split(" (")[0] for line in log] == [
        "The signal listener lost Redis",
        "The signal listener has Redis again.",
    ] * 3


@pytest.mark.rule("WAI-2")
async def test_a_server_that_stands_still_is_noticed_and_missed_signals_are_looked_for(
    redis: Redis, running: Running, paused: Paused, wait_until: WaitUntil, log: list[str]
) -> None:
    listener = quick_listener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one:
            one.clear()
            with paused():
                await wait_until(lambda: not listener.alive, description="the outage")
                await woken(one)  # It counted on signals; from now on it polls.
                one.clear()
                assert not is_awake(one)
            await woken(one)
            assert listener.alive
    assert len(log) == 2


async def test_a_server_that_pauses_shortly_stays_subscribed(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis, ping_seconds=0.02, ping_answer_seconds=60)
    async with running(listener):
        await subscribed(listener, wait_until)
        (client,) = await horde.clients(LISTENER_NAME)
        with listener.register("one") as one:
            await redis.client_pause(200, all=True)
            await horde.signal("one", "finished")
            await woken(one)
        assert [each["id"] for each in await horde.clients(LISTENER_NAME)] == [client["id"]]


async def test_a_flushed_server_loses_no_signal(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one:
            await redis.flushall()
            await horde.signal("one", "finished")
            await woken(one)


async def test_a_request_registered_while_there_is_no_server_is_woken_when_there_is_one(
    redis: Redis, running: Running, paused: Paused, wait_until: WaitUntil
) -> None:
    listener = quick_listener(redis)
    with paused():
        async with running(listener):
            one = listener.register("one")
            assert not listener.alive
    async with running(listener):
        await subscribed(listener, wait_until)
        await woken(one)
        one.close()


async def test_waiters_are_woken_over_two_seconds_after_a_subscribe(
    redis: Redis, running: Running, wait_until: WaitUntil
) -> None:
    numbers = count()
    listener = CompletionSignalListener(redis, jitter=lambda: next(numbers) / 100)
    waiters = [listener.register(str(number)) for number in range(100)]
    async with running(listener):
        await subscribed(listener, wait_until)
        times = sorted(timer.when() for timer in listener._wake_timers)
        assert len(times) == 40
        assert times[-1] - times[0] == pytest.approx(1.95, abs=0.01)
    assert not listener._wake_timers
    for waiter in waiters:
        waiter.close()


async def test_two_waits_of_one_request_both_wake(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        with listener.register("one") as one:
            with listener.register("one") as other:
                await horde.signal("one", "finished")
                await woken(other)
            one.clear()
            await horde.signal("one", "finished")
            await woken(one)


async def test_leaving_forgets_the_request_once(redis: Redis) -> None:
    listener = CompletionSignalListener(redis)
    with listener.register("one") as one:
        one.close()
    one.close()

    assert listener._subscriptions == {}


async def test_a_listener_that_ends_leaves_no_connection(
    redis: Redis, horde: HordeStreams, running: Running, wait_until: WaitUntil
) -> None:
    listener = CompletionSignalListener(redis)
    async with running(listener):
        await subscribed(listener, wait_until)
        assert len(await horde.clients(LISTENER_NAME)) == 1

    async def nobody_is_there() -> bool:
        return not await horde.clients(LISTENER_NAME)

    await wait_until(nobody_is_there, description="the connection's end")
    assert not listener.alive
