"""What Redis is told of open requests: nothing twice, nothing of what ended in between, and no memory of an outage."""

from horde.oai.horde_client import Caller
from horde.oai.open_records import OpenRecords
from tests.support.clock import FakeClock

CALLER = Caller("key", "app:1:none")


def followed(*keys: str) -> OpenRecords:
    records = OpenRecords(FakeClock())
    records.begin_anew()
    for key in keys:
        records.open(key, CALLER)
    return records


def written(records: OpenRecords, limit: int = 100) -> list[str]:
    return [key for key, _ in records.take_changes(limit).written]


def test_a_request_that_ends_before_the_next_batch_never_gets_to_redis() -> None:
    records = followed("one", "two")
    records.close("one")
    changes = records.take_changes(100)
    assert ([key for key, _ in changes.written], changes.removed) == (["two"], [])


def test_what_was_written_is_removed_once_with_a_later_batch() -> None:
    records = followed("one")
    assert written(records) == ["one"]
    records.close("one")
    records.close("one")
    assert not records.changed.is_set()
    assert records.take_changes(100).removed == ["one"]
    assert not records.has_changes


def test_batches_are_bounded_and_the_rest_stays_due() -> None:
    records = followed(*map(str, range(5)))
    assert written(records, 3) == ["0", "1", "2"]
    assert records.changed.is_set()
    assert written(records, 3) == ["3", "4"]
    assert not records.changed.is_set()


def test_an_outage_is_not_remembered_and_everything_open_is_written_after_it() -> None:
    records = followed("kept", "ended")
    written(records)
    records.stop_following()
    for number in range(1000):
        records.open(f"short {number}", CALLER)
        records.close(f"short {number}")
    records.open("new", CALLER)
    records.close("ended")
    assert not records.has_changes
    records.begin_anew()
    changes = records.take_changes(100)
    assert ([key for key, _ in changes.written], changes.removed) == (["kept", "new"], [])
