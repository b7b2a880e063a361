"""One request's delta stream as the reader sees it: how far it was read, and what waits to be taken."""

from collections.abc import Callable, Iterable, Sequence

from horde.chat_contract import chat_stream_key
from horde.oai.delta_entry import DeltaEntry, parse_delta_entry

__all__ = [
    "ENTRIES_PER_READ",
    "MAX_QUEUED_BYTES",
    "MAX_QUEUED_ENTRIES",
    "DeltaStream",
    "RawEntry",
    "build_read_command",
    "entry_milliseconds",
]

ENTRIES_PER_READ = 64
"""Most entries that one read takes of one stream."""

MAX_QUEUED_ENTRIES = 1024
"""Entries of one stream that may wait to be taken; at the bound the stream stops for good."""

MAX_QUEUED_BYTES = 1024 * 1024
"""Bytes that they may hold together, names and values."""

_BEGINNING = b"0-0"

type RawEntry = tuple[bytes, Sequence[bytes] | None]
"""An entry as the server sends it: its id, then names and values in turn."""


def _split_id(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)


def entry_milliseconds(entry_id: bytes) -> int:
    """Return when an entry was appended, in milliseconds since the epoch of the server's clock (SPN-5)."""
    return _split_id(entry_id)[0]


class DeltaStream:
    """Position and queue of one stream.

    Args:
        request_id: The Horde's id of the request.

    Attributes:
        key: Key of the stream.
        last_id: Id of the last entry read; a read goes on behind it (DLT-11).
        stopped: Nothing is queued any more: a bound was reached, or the key holds no stream.
        on_arrival: Called when there is something to take, and when it stops; None while nobody asks.
    """

    __slots__ = ("_entries", "_queued_bytes", "key", "last_id", "on_arrival", "stopped")

    def __init__(self, request_id: str) -> None:
        self.key = chat_stream_key(request_id).encode()
        self.last_id = _BEGINNING
        self.stopped = False
        self.on_arrival: Callable[[], None] | None = None
        self._entries: list[DeltaEntry] = []
        self._queued_bytes = 0

    @property
    def arrived(self) -> bool:
        """Whether there is something to take; always once it stopped."""
        return self.stopped or bool(self._entries)

    @property
    def is_fresh(self) -> bool:
        """Whether no entry was read yet."""
        return self.last_id == _BEGINNING

    def receive(self, entries: Iterable[RawEntry]) -> int:
        """Queue the entries that are new, and return how many could not be read.

        Two reads may bring the same entry: the blocking one and one that was made at once.
        """
        malformed = 0
        last = _split_id(self.last_id)
        for entry_id, fields in entries:
            position = _split_id(entry_id)
            if position <= last or self.stopped:
                continue
            last, self.last_id = position, entry_id
            entry = parse_delta_entry(entry_id, fields or ())
            if entry is None:
                malformed += 1
            else:
                self._queue(entry, sum(map(len, fields or ())))
        return malformed

    def _queue(self, entry: DeltaEntry, size: int) -> None:
        if len(self._entries) >= MAX_QUEUED_ENTRIES or self._queued_bytes + size > MAX_QUEUED_BYTES:
            self.stop()
            return
        self._entries.append(entry)
        self._queued_bytes += size
        self._tell()

    def take(self) -> list[DeltaEntry]:
        """Remove and return what is queued, in order."""
        entries, self._entries, self._queued_bytes = self._entries, [], 0
        return entries

    def stop(self) -> None:
        """Queue nothing more."""
        self.stopped = True
        self._tell()

    def _tell(self) -> None:
        if self.on_arrival is not None:
            self.on_arrival()


def build_read_command(streams: Sequence[DeltaStream], *, block_milliseconds: int | None = None) -> list[bytes]:
    """Return the XREAD of some streams, each behind the last entry read of it.

    Args:
        streams: At least one.
        block_milliseconds: How long the server may hold the read open, at least 1; None does not block.
    """
    blocking = [] if block_milliseconds is None else [b"BLOCK", b"%d" % max(block_milliseconds, 1)]
    return [
        b"XREAD",
        *blocking,
        b"COUNT",
        b"%d" % ENTRIES_PER_READ,
        b"STREAMS",
        *(stream.key for stream in streams),
        *(stream.last_id for stream in streams),
    ]
