import pytest

from tests.support.waiting import wait_until


async def test_waiting_returns_what_the_predicate_saw() -> None:
    values = iter([0, "", "there"])
    assert await wait_until(lambda: next(values), description="a value") == "there"


async def test_waiting_takes_a_predicate_that_must_be_awaited() -> None:
    async def holds() -> bool:
        return True

    assert await wait_until(holds, description="a coroutine's value") is True


async def test_a_wait_that_ends_in_vain_says_what_was_waited_for_and_what_was_seen() -> None:
    with pytest.raises(AssertionError, match=r"for: a third job\. Last seen: \[\]"):
        await wait_until(list, description="a third job", seconds=0.02)
