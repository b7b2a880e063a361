import asyncio

import pytest

from horde.oai.wake import Wake
from tests.support.virtual_time import run_in_virtual_time


async def test_a_set_wake_does_not_wait() -> None:
    wake = Wake()
    wake.set()

    await wake.wait()
    await wake.wait()
    assert wake.is_set()


async def test_every_waiter_is_woken() -> None:
    wake = Wake()
    waiters = [asyncio.create_task(wake.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    wake.set()
    wake.set()

    await asyncio.gather(*waiters)
    assert wake._waiters == []


async def test_a_cleared_wake_waits_again() -> None:
    wake = Wake()
    wake.set()
    wake.clear()
    waiter = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    assert not waiter.done()

    wake.set()
    await waiter


async def test_a_waiter_that_was_set_wakes_although_it_is_cleared_at_once() -> None:
    wake = Wake()
    waiter = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    wake.set()
    wake.clear()

    await waiter


async def test_a_cancelled_waiter_is_forgotten() -> None:
    wake = Wake()
    waiter = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait({waiter})

    assert wake._waiters == []
    wake.set()


# Waiting for a time at the most. Virtual time fails a test that leaves a timer or a task behind.


def test_a_wake_set_before_the_wait_ends_it_at_once() -> None:
    async def script() -> float:
        wake = Wake()
        wake.set()
        began = asyncio.get_running_loop().time()
        await wake.wait_within(60)
        return asyncio.get_running_loop().time() - began

    assert run_in_virtual_time(script()) == 0


def test_a_wake_set_during_the_wait_ends_it_then() -> None:
    async def script() -> float:
        loop, wake = asyncio.get_running_loop(), Wake()
        began = loop.time()
        loop.call_later(2, wake.set)
        await wake.wait_within(60)
        assert wake.is_set()
        assert wake._waiters == []
        return loop.time() - began

    assert run_in_virtual_time(script()) == pytest.approx(2, abs=0.01)


def test_a_wake_that_is_not_set_ends_the_wait_after_its_time() -> None:
    async def script() -> float:
        loop, wake = asyncio.get_running_loop(), Wake()
        began = loop.time()
        await wake.wait_within(60)
        assert not wake.is_set()
        assert wake._waiters == []
        return loop.time() - began

    assert run_in_virtual_time(script()) == pytest.approx(60, abs=0.01)


def test_a_wait_of_no_time_lets_others_run() -> None:
    async def script() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_soon(order.append, "other")
        await Wake().wait_within(-1)
        return [*order, "waiter"]

    assert run_in_virtual_time(script()) == ["other", "waiter"]


def test_a_wait_for_a_time_that_is_cancelled_leaves_nothing() -> None:
    async def script() -> None:
        wake = Wake()
        waiter = asyncio.create_task(wake.wait_within(60))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait({waiter})
        assert waiter.cancelled()
        assert wake._waiters == []
        wake.set()

    run_in_virtual_time(script())


def test_a_wake_set_in_the_turn_of_a_cancel_does_not_swallow_the_cancel() -> None:
    async def script() -> None:
        wake = Wake()
        waiter = asyncio.create_task(wake.wait_within(60))
        await asyncio.sleep(0)
        wake.set()
        waiter.cancel()
        await asyncio.wait({waiter})
        assert waiter.cancelled()
        assert wake._waiters == []

    run_in_virtual_time(script())


def test_a_wake_set_between_two_waits_ends_the_second_at_once() -> None:
    async def script() -> float:
        loop, wake = asyncio.get_running_loop(), Wake()
        wake.set()
        await wake.wait_within(60)
        wake.clear()
        wake.set()
        began = loop.time()
        await wake.wait_within(60)
        return loop.time() - began

    assert run_in_virtual_time(script()) == 0
