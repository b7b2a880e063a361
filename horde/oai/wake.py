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
            _settle(waiter)

    def clear(self) -> None:
        """Let those who wait from now on sleep until the next ``set``."""
        self._is_set = False

    async def wait(self) -> None:
        """Return at once when the flag is set, else when it is."""
        if self._is_set:
            return
        waiters, waiter = self._add_waiter()
        try:
            await waiter
        finally:
            waiters.remove(waiter)

    async def wait_within(self, seconds: float) -> None:
        """Return as ``wait`` does, and after so many seconds at the latest.

        One future and one timer, in place of a task or a scope with a time limit: a stream does this for each part that
        it sends.

        Args:
            seconds: Longest wait; one of nothing or less lets the loop turn once.
        """
        if self._is_set:
            return
        waiters, waiter = self._add_waiter()
        timer = waiter.get_loop().call_later(max(0.0, seconds), _settle, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            waiters.remove(waiter)

    def _add_waiter(self) -> "tuple[list[asyncio.Future[None]], asyncio.Future[None]]":
        """Return those who wait, with a new one among them, and the new one."""
        if self._waiters is None:
            self._waiters = []
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return self._waiters, waiter


def _settle(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
