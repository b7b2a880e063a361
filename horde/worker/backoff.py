"""How long to wait before trying again: growing, with jitter. Pure but for its random numbers."""

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Delays that double up to a limit, each spread over its upper half.

    The jitter keeps the workers of a Horde that comes back from knocking all at once.

    Args:
        first_seconds: The first delay.
        limit_seconds: The longest one.
        random_unit: Returns a number from 0 to 1.
    """

    def __init__(
        self,
        first_seconds: float,
        limit_seconds: float,
        *,
        random_unit: Callable[[], float] = random.random,
    ) -> None:
        self._first_seconds = first_seconds
        self._limit_seconds = limit_seconds
        self._random_unit = random_unit
        self._next_seconds = first_seconds

    def next_delay(self, at_least: float | None = None) -> float:
        """Return the seconds to wait now.

        Args:
            at_least: What the other side asked for (``Retry-After``); it is obeyed up to ten times the limit.
        """
        delay = self._next_seconds * (0.5 + 0.5 * self._random_unit())
        self._next_seconds = min(self._next_seconds * 2, self._limit_seconds)
        if at_least is not None:
            delay = max(delay, min(at_least, 10 * self._limit_seconds))
        return delay

    def reset(self) -> None:
        """Start again from the first delay: something worked."""
        self._next_seconds = self._first_seconds
