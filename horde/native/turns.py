"""Copies of one operation, one after the other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable

__all__ = ["Turns"]


class Turns:
    """Lets one caller per key through at a time; keys nobody holds or waits for are forgotten."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        """Return how many keys are held."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def take(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for the key's turn and keep it until the context ends."""
        lock, count = self._waiting.get(key, (asyncio.Lock(), 0))
        self._waiting[key] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            lock, count = self._waiting[key]
            if count > 1:
                self._waiting[key] = (lock, count - 1)
            else:
                del self._waiting[key]
