"""Waiting in tests: for a condition, with a bound, and a failure that says what was seen."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

__all__ = ["Predicate", "WaitUntil", "wait_until"]

Predicate = Callable[[], object] | Callable[[], Awaitable[object]]
"""Returns something true, or a coroutine of it, once the condition holds."""

WaitUntil = Callable[..., Awaitable[object]]
"""Type of the fixture ``wait_until``."""


async def wait_until(
    predicate: Predicate,
    *,
    description: str,
    seconds: float = 30.0,
    interval_seconds: float = 0.005,
) -> object:
    """Wait until a predicate holds and return its value.

    Args:
        predicate: Looked at again and again; an exception it raises fails the test at once.
        description: What is waited for, in the failure's sentence.
        seconds: Longest wait.
        interval_seconds: Time between two looks.

    Raises:
        AssertionError: It did not hold in time; the message shows the last value.
    """
    seen: object = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                value = predicate()
                seen = await value if inspect.isawaitable(value) else value
                if seen:
                    return seen
                await asyncio.sleep(interval_seconds)
    except TimeoutError:
        raise AssertionError(f"Waited {seconds:g} s for: {description}. Last seen: {seen!r}") from None
