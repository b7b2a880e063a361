"""A flag that a waiter sleeps on."""

import asyncio

__all__ = ["Wake"]


class Wake:
    """An ``asyncio.Event`` that costs nothing until somebody waits: thousands of streams hold several each."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether ``set`` was called since the last ``clear``."""
        return self._is_set

    def set(self) -> None:
        """Wake every waiter, now and later ones until ``clear``."""
        self._is_set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let those who wait from now on sleep until the next ``set``."""
        self._is_set = False

    async def wait(self) -> None:
        """Return at once when the flag is set, else when it is."""
        if self._is_set:
            return
        if self._waiters is None:
            self._waiters = []
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
