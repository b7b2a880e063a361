"""What Redis should hold about the open requests of this process, and what of that it was not told yet.

Requests change it without waiting for anything; :mod:`horde.oai.open_requests` brings the changes to Redis in batches.
A request that begins and ends between two batches never gets there.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from horde.oai.horde_client import Caller

__all__ = ["OpenRecord", "OpenRecords", "RecordChanges"]


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """An operation that may exist on the Horde.

    Attributes:
        caller: Who submitted it.
        opened_at: Unix seconds of the submit; it expires by itself 20 minutes later.
    """

    caller: Caller
    opened_at: float


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """The next changes for Redis.

    Attributes:
        written: Operation keys and records to write.
        removed: Operation keys to remove.
    """

    written: list[tuple[str, OpenRecord]]
    removed: list[str]


class OpenRecords:
    """The records of this process, by operation key.

    Changes are remembered only while Redis is being told of them. After a failure it is told everything anew, so an
    outage of any length costs no memory.

    Args:
        clock: Unix seconds.

    Attributes:
        changed: Set while there is something to write. Removals wait for the next batch: cancelling what has ended
            changes nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self._open: dict[str, OpenRecord] = {}
        self._unwritten: dict[str, None] = {}
        self._unremoved: dict[str, None] = {}
        self._is_followed = False

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, operation_key: str) -> bool:
        return operation_key in self._open

    def open(self, operation_key: str, caller: Caller) -> None:
        """Note an operation, before its submit."""
        self._open[operation_key] = OpenRecord(caller, self._clock())
        if self._is_followed:
            self._unwritten[operation_key] = None
            self.changed.set()

    def close(self, operation_key: str) -> None:
        """Forget an operation: nothing of it runs on the Horde any more. Does nothing when it is not noted."""
        if self._open.pop(operation_key, None) is None or not self._is_followed:
            return
        if operation_key in self._unwritten:
            del self._unwritten[operation_key]
        else:
            self._unremoved[operation_key] = None

    def adopt(self, records: Iterable[tuple[str, OpenRecord]]) -> None:
        """Note operations of another process that Redis already holds as this one's."""
        self._open.update(records)

    def reject(self, operation_key: str) -> None:
        """Have something removed that Redis holds as this process's and that is no record."""
        self._unremoved[operation_key] = None

    def begin_anew(self) -> None:
        """Remember changes from now on; everything open counts as unwritten."""
        self._is_followed = True
        self._unwritten = dict.fromkeys(self._open)
        self._unremoved.clear()
        self.changed.set()

    def stop_following(self) -> None:
        """Remember no changes: Redis is away."""
        self._is_followed = False
        self._unwritten.clear()
        self._unremoved.clear()
        self.changed.clear()

    def take_changes(self, limit: int) -> RecordChanges:
        """Return the next changes, at most ``limit`` of either kind, and forget them.

        They must reach Redis, or ``stop_following`` has to be called.
        """
        written = [(key, self._open[key]) for key in islice(self._unwritten, limit)]
        removed = list(islice(self._unremoved, limit))
        for key, _ in written:
            del self._unwritten[key]
        for key in removed:
            del self._unremoved[key]
        if not self._unwritten:
            self.changed.clear()
        return RecordChanges(written, removed)

    @property
    def has_changes(self) -> bool:
        """Whether a batch is due."""
        return bool(self._unwritten or self._unremoved)
