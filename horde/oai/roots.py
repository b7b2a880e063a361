"""Which base URL of the Horde a call goes to next, and why (SUB-10, decision U31)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from loguru import logger

__all__ = ["ROOT_REST_SECONDS", "Roots", "call_away_roots"]

ROOT_REST_SECONDS: Final = 10.0
"""How long a root that failed to connect or to answer is left alone."""

_AWAY_CALL_SECONDS: Final = 5.0
"""Interval at which a Horde that is away is called: well under the time it takes a balancer to notice."""


class Roots:
    """The base URLs of one Horde, tried in order; a failing one rests, and when all rest, the longest-rested is tried.

    Args:
        urls: Base URLs without a final slash, at least one.
        clock: Monotonic seconds.
    """

    def __init__(self, urls: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        self._failed_at: dict[str, float] = {}
        self._away_since: float | None = None
        self._away = asyncio.Event()

    def pick(self, *, after: str | None = None) -> str:
        """Return the root for the next call.

        Args:
            after: The root that a call just failed on, which another is preferred to.
        """
        now = self._clock()
        fit = [url for url in self._urls if self._failed_at.get(url, -ROOT_REST_SECONDS) + ROOT_REST_SECONDS <= now]
        if others := [url for url in fit if url != after]:
            return others[0]
        if fit:
            return fit[0]
        return min(self._urls, key=lambda url: self._failed_at[url])

    def failed(self, url: str) -> None:
        """Let a root rest: it did not connect or did not answer."""
        self._failed_at[url] = self._clock()
        if self._away_since is None and len(self._failed_at) == len(self._urls):
            self._away_since = self._clock()
            self._away.set()

    def answered(self, url: str) -> None:
        """A root answered, whatever it said."""
        self._failed_at.pop(url, None)
        self._away_since = None
        self._away.clear()

    @property
    def away(self) -> bool:
        """Whether every root failed since one last answered."""
        return self._away.is_set()

    async def wait_away(self) -> None:
        """Wait until every root has failed."""
        await self._away.wait()

    @property
    def away_seconds(self) -> float:
        """How long no root has answered; 0 while one does (decision U32)."""
        return 0.0 if self._away_since is None else self._clock() - self._away_since


async def call_away_roots(roots: Roots, call: Callable[[], Awaitable[None]]) -> None:
    """Call the Horde at an interval while it is away, so that its return is noticed without any client's request.

    A front that is not ready gets no traffic, so nothing else would ever tell it that the Horde answers again (U32).

    Args:
        roots: The Horde's roots.
        call: Makes one cheap call, whose outcome the roots are told of.
    """
    while True:
        await roots.wait_away()
        logger.warning("No address of the Horde answers; it is called every {:g} s until one does", _AWAY_CALL_SECONDS)
        while roots.away:
            await asyncio.sleep(_AWAY_CALL_SECONDS)
            if roots.away:
                await call()
        logger.info("The Horde answers again")
