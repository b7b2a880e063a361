"""When a worker serves: days and times of a week, in one time zone.

A window is written ``mon-fri 22:00-07:00``: days, which may be left out for every day, and two times. One that ends
before it starts ends on the next day. Several are separated by semicolons.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self
from zoneinfo import ZoneInfo

from loguru import logger

__all__ = ["Schedule", "ScheduleError", "ServingHours", "WallClock", "Window", "find_zone"]

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES: Final = 24 * 60
_WINDOW: Final = re.compile(r"(?:(?P<days>\S+)\s+)?(?P<start>\d\d:\d\d)-(?P<end>\d\d:\d\d)")
_SHORTEST_LOOK_SECONDS: Final = 0.1
_LONGEST_LOOK_SECONDS: Final = 30.0
_EXAMPLE: Final = "a window such as `mon-fri 22:00-07:00` is expected"


class ScheduleError(ValueError):
    """A schedule is not written as one; the message says how it is."""


class WallClock:
    """The time of day, and waiting for it."""

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)


def find_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA's list.

    Raises:
        ScheduleError: There is none of this name on this machine.
    """
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ScheduleError("a time zone's name such as Europe/Berlin is expected, from the machine's tzdata") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time of the day, on some days of the week.

    Attributes:
        days: On which it starts, 0 for Monday.
        start: Minutes after midnight.
        end: Minutes after the same midnight; past 1440 when it ends on the next day.
    """

    days: frozenset[int]
    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a window.

        Raises:
            ScheduleError: It is written in another way.
        """
        match = _WINDOW.fullmatch(text.strip().lower())
        if match is None:
            raise ScheduleError(_EXAMPLE)
        start, end = _minutes(match["start"]), _minutes(match["end"])
        if start == end:
            raise ScheduleError("a window that ends when it starts is none; the whole day is 00:00-24:00")
        if start == _DAY_MINUTES:
            raise ScheduleError("a day starts at 00:00")
        return cls(days=_parse_days(match["days"]), start=start, end=end if end > start else end + _DAY_MINUTES)

    def holds(self, weekday: int, minute: float) -> bool:
        """Whether a time of a day is in it."""
        if weekday in self.days and self.start <= minute < self.end:
            return True
        return (weekday - 1) % 7 in self.days and minute < self.end - _DAY_MINUTES


def _minutes(text: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if minutes >= 60 or hours * 60 + minutes > _DAY_MINUTES:  # noqa: PLR2004 - minutes of an hour
        raise ScheduleError("times are from 00:00 to 24:00")
    return hours * 60 + minutes


def _parse_days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in _DAYS or (last and last not in _DAYS):
            raise ScheduleError(f"days are {', '.join(_DAYS)}, as in mon-fri or sat,sun")
        begin, count = _DAYS.index(first), (_DAYS.index(last or first) - _DAYS.index(first)) % 7
        days.update((begin + offset) % 7 for offset in range(count + 1))
    return frozenset(days)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When to serve: in any of some windows, or always when there are none.

    Attributes:
        windows: The windows.
        zone: Where they are meant; None for the machine's own zone.
    """

    windows: tuple[Window, ...] = ()
    zone: ZoneInfo | None = None

    def is_open(self, moment: float) -> bool:
        """Whether to serve at a moment, in seconds since 1970."""
        if not self.windows:
            return True
        wall = datetime.fromtimestamp(moment, self.zone)
        minute = wall.hour * 60 + wall.minute + wall.second / 60
        return any(window.holds(wall.weekday(), minute) for window in self.windows)

    def next_change(self, moment: float) -> float | None:
        """Return the next moment at which it opens or closes; None when it never does."""
        now_open = self.is_open(moment)
        changes = (edge for edge in sorted(self._edges(moment)) if edge > moment and self.is_open(edge) != now_open)
        return next(changes, None)

    def in_words(self, moment: float) -> str:
        """Return the next change for people, in the schedule's zone: ``at Mon 22:00``."""
        change = self.next_change(moment)
        return "never" if change is None else f"at {datetime.fromtimestamp(change, self.zone):%a %H:%M}"

    def _edges(self, moment: float) -> Iterator[float]:
        """Yield every moment of a week around now at which a window starts or ends."""
        today = datetime.fromtimestamp(moment, self.zone).replace(hour=0, minute=0, second=0, microsecond=0)
        for offset in range(-1, 9):
            day = today + timedelta(days=offset)
            for window in self.windows:
                if day.weekday() in window.days:
                    # When clocks are put back an hour comes twice.
                    for edge in (day + timedelta(minutes=window.start), day + timedelta(minutes=window.end)):
                        yield edge.replace(fold=0).timestamp()
                        yield edge.replace(fold=1).timestamp()


class ServingHours:
    """Waits for a schedule to open and close.

    The clock is looked at again and again: a machine sleeps, and its clock is set.

    Args:
        schedule: When to serve.
        clock: The time of day.
    """

    def __init__(self, schedule: Schedule, clock: WallClock) -> None:
        self._schedule = schedule
        self._clock = clock

    async def wait_until_open(self, stopping: asyncio.Event) -> bool:
        """Wait until it is time to serve, or the event is set; return whether there was a wait."""
        if self._is_open():
            return False
        logger.info("Out of hours: no jobs are taken until {}.", self._schedule.in_words(self._clock.now()))
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(stopping.wait(), name="worker - stop of a rest")
            opening = group.create_task(self._wait_for(open_=True), name="worker - opening")
            await asyncio.wait({stop, opening}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            opening.cancel()
        return True

    async def wait_until_closed(self) -> None:
        """Wait until it is time to rest; for ever when it is always time to serve."""
        await self._wait_for(open_=False)
        logger.info("Serving hours are over: running jobs finish.")

    async def _wait_for(self, *, open_: bool) -> None:
        while self._is_open() is not open_:
            now = self._clock.now()
            change = self._schedule.next_change(now)
            left = _LONGEST_LOOK_SECONDS if change is None else change - now
            await self._clock.wait(min(max(left, _SHORTEST_LOOK_SECONDS), _LONGEST_LOOK_SECONDS))

    def _is_open(self) -> bool:
        return self._schedule.is_open(self._clock.now())
