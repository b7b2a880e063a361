"""Clocks that a test moves by hand."""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

from horde.worker.schedule import WallClock

__all__ = ["FakeClock", "FakeWallClock"]


class FakeClock:
    """Monotonic seconds that only pass when told.

    Args:
        now: First reading.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class FakeWallClock(WallClock):
    """A time of day that stands still until it is set.

    Args:
        start: Local time of ``zone``, as ``2026-12-07 21:00``.
        zone: Time zone of the times given.
    """

    def __init__(self, start: str, zone: str = "Europe/Berlin") -> None:
        self._zone = ZoneInfo(zone)
        self._changed = asyncio.Event()
        self.set(start)

    def now(self) -> float:
        """Return the time that was set."""
        return self._now

    def set(self, moment: str) -> None:
        """Make it another time; whoever waits looks again."""
        self._now = datetime.fromisoformat(moment).replace(tzinfo=self._zone).timestamp()
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:  # noqa: ARG002 - WallClock's
        """Wait until the time is set."""
        await self._changed.wait()
