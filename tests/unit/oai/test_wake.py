import asyncio

from horde.oai.wake import Wake


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
