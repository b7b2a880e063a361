"""In-flight slots: a cap for the process and one for each client address (rules ADM)."""

from collections import Counter
from types import TracebackType
from typing import Self

from horde.oai.errors import ChatFrontError, FrontCode

__all__ = ["InflightLimiter", "InflightSlot"]


class InflightSlot:
    """One request's slot; leaving it or releasing it gives it back, once (ADM-3)."""

    __slots__ = ("_limiter", "_source")

    def __init__(self, limiter: "InflightLimiter", source: str) -> None:
        self._limiter: InflightLimiter | None = limiter
        self._source = source

    def release(self) -> None:
        """Give the slot back; further calls do nothing."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.give_back(self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class InflightLimiter:
    """Bounds the requests running at once.

    Args:
        limit: For the whole process.
        limit_per_source: For one client address.
    """

    def __init__(self, limit: int, limit_per_source: int) -> None:
        self._limit = limit
        self._limit_per_source = limit_per_source
        self._by_source: Counter[str] = Counter()
        self._in_use = 0

    def look(self, source: str) -> None:
        """Check that a slot is free now, without taking it: before a body is read.

        Raises:
            ChatFrontError: ``FrontAtCapacity`` (ADM-2).
        """
        if self._in_use >= self._limit:
            raise ChatFrontError(FrontCode.AT_CAPACITY, "This front has all its requests running; retry shortly.")
        if self._by_source.get(source, 0) >= self._limit_per_source:
            raise ChatFrontError(
                FrontCode.AT_CAPACITY,
                f"Your address has {self._limit_per_source} requests running on this front, the most it may; wait for "
                "one to end.",
            )

    def acquire(self, source: str) -> InflightSlot:
        """Take a slot.

        Args:
            source: The client's address, as it is counted.

        Raises:
            ChatFrontError: ``FrontAtCapacity`` (ADM-2).
        """
        self.look(source)
        self._in_use += 1
        self._by_source[source] += 1
        return InflightSlot(self, source)

    def give_back(self, source: str) -> None:
        """Return one slot of an address; called by the slot alone."""
        self._in_use -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]

    @property
    def in_use(self) -> int:
        """Slots held."""
        return self._in_use

    @property
    def source_count(self) -> int:
        """Addresses holding at least one slot."""
        return len(self._by_source)

    @property
    def source_max(self) -> int:
        """The most slots of one address."""
        return max(self._by_source.values(), default=0)
