"""Which base URL of the Horde a call goes to next, and why (SUB-10, decision U31)."""

import time
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["ROOT_REST_SECONDS", "Roots"]

ROOT_REST_SECONDS: Final = 10.0
"""How long a root that failed to connect or to answer is left alone."""


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

    def answered(self, url: str) -> None:
        """A root answered, whatever it said."""
        self._failed_at.pop(url, None)
        self._away_since = None

    @property
    def away_seconds(self) -> float:
        """How long no root has answered; 0 while one does (decision U32)."""
        return 0.0 if self._away_since is None else self._clock() - self._away_since
