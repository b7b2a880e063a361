from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from horde.worker.schedule import Schedule, ScheduleError, Window, find_zone

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def schedule(*windows: str, zone: ZoneInfo = BERLIN) -> Schedule:
    return Schedule(tuple(Window.parse(window) for window in windows), zone)


def test_without_windows_it_is_always_open_and_never_changes() -> None:
    assert Schedule().is_open(0.0)
    assert Schedule().next_change(0.0) is None


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-12-07 21:59:59", False),  # a Monday
        ("2026-12-07 22:00", True),
        ("2026-12-08 06:59:59", True),
        ("2026-12-08 07:00", False),
        ("2026-12-12 06:00", True),  # Friday's window ends on Saturday
        ("2026-12-12 23:00", False),
        ("2026-12-07 06:00", False),  # Sunday is no day of its
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_it_starts_on(moment: str, *, expected: bool) -> None:
    assert schedule("mon-fri 22:00-07:00").is_open(at(moment)) is expected


def test_days_may_be_listed_go_over_the_weekend_and_be_left_out() -> None:
    assert Window.parse("sat,mon 08:00-09:00").days == {5, 0}
    assert Window.parse("fri-mon 08:00-09:00").days == {4, 5, 6, 0}
    assert Window.parse("08:00-24:00") == Window(days=frozenset(range(7)), start=480, end=1440)


@pytest.mark.parametrize(
    "text", ["", "mon", "8:00-9:00", "mon-fri", "moo 08:00-09:00", "08:00-08:00", "25:00-26:00", "08:60-09:00"]
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError):
        Window.parse(text)


def test_the_next_change_is_the_end_of_windows_that_touch() -> None:
    touching = schedule("mon 08:00-24:00", "tue 00:00-12:00")
    assert touching.next_change(at("2026-12-07 09:00")) == at("2026-12-08 12:00")
    assert touching.next_change(at("2026-12-08 12:00")) == at("2026-12-14 08:00")
    assert touching.in_words(at("2026-12-07 09:00")) == "at Tue 12:00"


def test_windows_that_fill_the_week_never_change() -> None:
    assert schedule("00:00-24:00").next_change(at("2026-12-07 09:00")) is None


def test_the_zone_decides_and_not_the_machine() -> None:
    night = schedule("22:00-23:00")
    assert night.is_open(datetime(2026, 12, 7, 21, 30, tzinfo=UTC).timestamp())
    assert night.is_open(datetime(2026, 7, 7, 20, 30, tzinfo=UTC).timestamp())


def test_an_hour_that_comes_twice_is_open_twice_and_a_window_in_one_that_is_left_out_starts_after_it() -> None:
    autumn = datetime(2026, 10, 25, tzinfo=UTC)
    night = schedule("02:00-03:00")
    assert night.is_open(autumn.replace(hour=0, minute=30).timestamp())
    assert night.is_open(autumn.replace(hour=1, minute=30).timestamp())
    assert night.next_change(autumn.replace(hour=0, minute=30).timestamp()) == autumn.replace(hour=2).timestamp()
    spring = datetime(2026, 3, 29, 1, 0, tzinfo=UTC).timestamp()
    assert schedule("02:30-04:00").is_open(spring)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ScheduleError):
        find_zone("Europe/Berlim")
    with pytest.raises(ScheduleError):
        find_zone("../etc/passwd")
