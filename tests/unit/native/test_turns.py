import asyncio

import pytest

from horde.native.turns import Turns


async def test_one_caller_of_a_key_runs_at_a_time_and_others_are_not_held_up() -> None:
    turns, release = Turns(), asyncio.Event()
    seen: list[str] = []

    async def work(key: str, name: str) -> None:
        async with turns.take(key):
            seen.append(name)
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for key, name in (("a", "first"), ("a", "second"), ("b", "other")):
            group.create_task(work(key, name), name=f"test - {name}")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == ["first", "other"]
        assert len(turns) == 2
        release.set()
    assert seen == ["first", "other", "second"]
    assert len(turns) == 0


async def test_a_caller_that_fails_or_is_cancelled_leaves_its_turn_to_the_next() -> None:
    turns = Turns()

    async def wait_for_turn() -> None:
        async with turns.take("a"):
            raise AssertionError("It was cancelled before its turn came")

    async def fail_while_another_waits() -> None:
        async with turns.take("a"):
            waiter = asyncio.create_task(wait_for_turn(), name="test - waiter")
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_another_waits()
    assert len(turns) == 0
    async with turns.take("a"):
        assert len(turns) == 1
