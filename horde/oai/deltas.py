"""Reading the delta streams of all requests that are being generated (DLT-7 to DLT-14, SPN-2 to SPN-6).

What a read costs grows with its keys, in the client and in the server, so everything here keeps keys and reads few: a
subscription joins the read when its job has started and leaves with its request, one blocking read serves all, and
after a read that found entries there is a pause in which more can gather, except for streams that had none yet.

Two tasks with a connection each: one sits in the blocking read; the other reads at once what joins or finishes, and
ends the blocking read so that it takes the new keys in. Entries are in the streams until they expire, so nothing is
missed by reading again from the last id.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Self, cast

from loguru import logger
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from horde.oai.delta_entry import DeltaEntry
from horde.oai.delta_stream import (
    ENTRIES_PER_READ,
    DeltaStream,
    RawEntry,
    build_read_command,
    entry_milliseconds,
)
from horde.oai.redis_link import LINK_ERRORS, OutageLog, RedisLink, Reply
from horde.oai.wake import Wake

__all__ = ["DELTA_READ_TIMEOUT_SECONDS", "DeltaEntry", "DeltaRead", "DeltaStreamReader", "DeltaSubscription"]

DELTA_READ_TIMEOUT_SECONDS = 5.0
"""Longest time for a read; a connection that a network fault swallows is left behind after it (DLT-9)."""

READ_PAUSE_SECONDS = 2.0
"""Time before a read that failed is made again (DLT-11)."""

BLOCK_MILLISECONDS = 250
"""Longest time that the server holds a read open (DLT-7)."""

COALESCE_SECONDS = 0.03
"""Least time from a read that found entries to the next one over all streams."""

DRAIN_SECONDS = 1.0
"""Longest time that a final reply waits for the entries that are already there."""

_STREAMS_PER_BATCH = 128
"""First reads and last reads sent together."""

_UNBLOCK_PAUSE_SECONDS = 0.01
"""Time after which the blocking read is asked again to end, when it had not begun to block."""


@dataclass(frozen=True, slots=True)
class DeltaRead:
    """One read that returned entries, over all streams (SPN-2).

    Attributes:
        entry_count: Entries returned (SPN-3).
        byte_count: Size of their field names and values (SPN-4).
        first_entry_lag_seconds: Age of the oldest when the read returned, by the server's clock (SPN-5).
    """

    entry_count: int
    byte_count: int
    first_entry_lag_seconds: float


class DeltaSubscription:
    """The deltas of one request; leaving the context leaves the read, once.

    Args:
        request_id: The Horde's id of the request.
        reader: The reader of the process.
    """

    __slots__ = ("_joined", "_left", "_reader", "_stream", "request_id")

    def __init__(self, request_id: str, reader: "DeltaStreamReader") -> None:
        self.request_id = request_id
        self._reader = reader
        self._stream = DeltaStream(request_id)
        self._joined = False
        self._left = False

    @property
    def stopped(self) -> bool:
        """Nothing comes after what is queued, and the final reply brings the rest.

        Its bound was reached, or its stream cannot be read.
        """
        return self._stream.stopped

    def join(self) -> None:
        """Start to read, from the stream's start, since the job has started. Further calls do nothing."""
        if not self._joined and not self._left:
            self._joined = True
            self._reader.join(self._stream)

    @property
    def arrived(self) -> bool:
        """Whether there is something to take; always once the subscription stopped."""
        return self._stream.arrived

    def notify(self, on_arrival: Callable[[], None] | None) -> None:
        """Have something called whenever entries come and when the subscription stops; nothing any more with None."""
        self._stream.on_arrival = on_arrival

    def take(self) -> list[DeltaEntry]:
        """Return everything queued, in order, without waiting."""
        return self._stream.take()

    async def drain(self) -> list[DeltaEntry]:
        """Return everything queued and what is in the stream by now: before a final reply is reconciled.

        Never raises because of Redis, and takes a second at most: what is not read then, the final reply brings.
        """
        if self._joined and not self.stopped and not self._left:
            await self._reader.read_now(self._stream)
        return self.take()

    def close(self) -> None:
        """Leave the read. Further calls do nothing."""
        if not self._left:
            self._left = True
            self._stream.on_arrival = None
            self._reader.leave(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class DeltaStreamReader:
    """The reader of the process. Requests use it through ``subscribe``.

    Args:
        redis: Client of the server and database that hold the streams (``HORDE_OAI_STREAM_REDIS_DB``).
        coalesce_seconds: Least time from a read that found entries to the next one over all streams.
        on_read: Told about each read that returned entries.
        clock: Seconds since the epoch, for the age of entries.
        read_timeout_seconds: Longest time for a read.
        read_pause_seconds: Time before a read that failed is made again.

    Attributes:
        ignored_entry_count: Entries that were no entries: a field was missing or malformed.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        coalesce_seconds: float = COALESCE_SECONDS,
        on_read: Callable[[DeltaRead], None] | None = None,
        clock: Callable[[], float] = time.time,
        read_timeout_seconds: float = DELTA_READ_TIMEOUT_SECONDS,
        read_pause_seconds: float = READ_PAUSE_SECONDS,
    ) -> None:
        self.ignored_entry_count = 0
        self._redis = redis
        self._coalesce_seconds = coalesce_seconds
        self._on_read = on_read
        self._clock = clock
        self._read_timeout_seconds = read_timeout_seconds
        self._read_pause_seconds = read_pause_seconds
        # A stream is in one of these two: waiting for its first read, or in the blocking one.
        self._joining: dict[bytes, DeltaStream] = {}
        self._reading: dict[bytes, DeltaStream] = {}
        self._fresh: dict[bytes, DeltaStream] = {}  # Those of ``_reading`` that had no entry yet.
        self._last_reads: list[tuple[DeltaStream, asyncio.Future[None]]] = []
        self._streams_changed = Wake()
        self._reads_wanted = Wake()
        self._can_read_now = False
        self._blocking_client_id: int | None = None
        self._read_in_flight = False
        self._read_lacks_streams = False
        self._read_ended = Wake()

    def subscribe(self, request_id: str) -> DeltaSubscription:
        """Return a subscription that reads nothing until it joins."""
        return DeltaSubscription(request_id, self)

    async def run(self) -> None:
        """Read until cancelled."""
        self._can_read_now = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_for_ever(), name="front - delta reader: blocking read")
                tasks.create_task(self._serve_reads_at_once(), name="front - delta reader: reads at once")
        finally:
            self._can_read_now = False
            self._end_last_reads()

    # What subscriptions ask for

    def join(self, stream: DeltaStream) -> None:
        """Read a stream from now on."""
        if stream.key in self._joining or stream.key in self._reading:
            # Two requests of one id, which only a broken Horde makes: one is relayed, the other comes whole.
            stream.stop()
            return
        self._joining[stream.key] = stream
        self._reads_wanted.set()

    def leave(self, stream: DeltaStream) -> None:
        """Read a stream no more."""
        for streams in (self._joining, self._reading, self._fresh):
            if streams.get(stream.key) is stream:
                del streams[stream.key]

    async def read_now(self, stream: DeltaStream) -> None:
        """Queue what is in a stream by now; return early when that is not possible in time."""
        if not self._can_read_now:
            return
        done = asyncio.get_running_loop().create_future()
        self._last_reads.append((stream, done))
        self._reads_wanted.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await done

    # The blocking read

    async def _read_for_ever(self) -> None:
        outage = OutageLog("The delta reader", "Live text stands still; replies still arrive whole.")
        link = RedisLink(self._redis, "horde-front-deltas", limit_seconds=self._read_timeout_seconds)
        try:
            while True:
                await self._streams_to_read()
                try:
                    await self._read_once(link)
                    outage.end()
                except TimeoutError as error:  # Abandoned and made again, on another connection.
                    outage.begin(error)
                    await link.close()
                except LINK_ERRORS as error:
                    outage.begin(error)
                    await link.close()
                    await asyncio.sleep(self._read_pause_seconds)
        finally:
            await link.close()

    async def _streams_to_read(self) -> None:
        while not self._reading:
            self._streams_changed.clear()
            await self._streams_changed.wait()

    async def _read_once(self, link: RedisLink) -> None:
        """Read all streams, and when entries came let more gather, but never those that have shown none yet."""
        loop = asyncio.get_running_loop()
        if not await self._read_blocking(link, self._reading, BLOCK_MILLISECONDS):
            return
        end = loop.time() + self._coalesce_seconds
        while (left := end - loop.time()) > 0:
            if self._fresh:
                await self._read_blocking(link, self._fresh, int(left * 1000))
                continue
            self._streams_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._streams_changed.wait()

    async def _read_blocking(self, link: RedisLink, streams: dict[bytes, DeltaStream], block_milliseconds: int) -> int:
        """Make one blocking read, and return how many entries it brought."""
        if not link.is_open:
            await link.open()
            self._blocking_client_id = cast("int", await link.call(b"CLIENT", b"ID"))
        if not streams:  # All left meanwhile.
            return 0
        command = build_read_command(list(streams.values()), block_milliseconds=block_milliseconds)
        self._read_in_flight = True
        self._read_lacks_streams = False
        try:
            reply = await link.call(*command)
        except ResponseError as error:
            if not _is_wrong_type(error):
                raise
            await self._stop_unreadable(link)
            return 0
        finally:
            self._read_in_flight = self._read_lacks_streams = False
            self._read_ended.set()
        return self._deliver(reply, self._reading)

    async def _stop_unreadable(self, link: RedisLink) -> None:
        """Stop the streams whose key holds something else, which would fail every read of the others."""
        streams = list(self._reading.values())
        replies = await link.call_many([build_read_command([stream]) for stream in streams])
        for stream, reply in zip(streams, replies, strict=True):
            if _is_wrong_type(reply):
                self._stop(stream)

    # The reads that are made at once

    async def _serve_reads_at_once(self) -> None:
        outage = OutageLog("The delta reader's first reads", "Live text begins late; replies still arrive whole.")
        link = RedisLink(self._redis, "horde-front-delta-joins", limit_seconds=self._read_timeout_seconds)
        try:
            while True:
                await self._reads_wanted.wait()
                self._reads_wanted.clear()
                try:
                    await self._read_at_once(link)
                    await self._end_blocking_read(link)
                    outage.end()
                except LINK_ERRORS as error:
                    outage.begin(error)
                    self._can_read_now = False
                    self._end_last_reads()
                    await link.close()
                    await asyncio.sleep(self._read_pause_seconds)
                    self._can_read_now = True
                    self._reads_wanted.set()
        finally:
            await link.close()

    async def _read_at_once(self, link: RedisLink) -> None:
        """Read the streams that join, and those whose reply is there, until they are empty."""
        while True:
            self._last_reads = [(stream, done) for stream, done in self._last_reads if not done.done()]
            joining = list(islice(self._joining.values(), _STREAMS_PER_BATCH))
            finishing = self._last_reads[:_STREAMS_PER_BATCH]
            streams = [*joining, *(stream for stream, _ in finishing)]
            if not streams:
                return
            await link.open()
            replies = await link.call_many([build_read_command([stream]) for stream in streams])
            empty = {
                stream for stream, reply in zip(streams, replies, strict=True) if self._receive_at_once(stream, reply)
            }
            for stream in joining:
                if stream in empty:
                    self._start_blocking(stream)
            for stream, done in finishing:
                if stream in empty and not done.done():
                    done.set_result(None)

    def _receive_at_once(self, stream: DeltaStream, reply: Reply | ResponseError) -> bool:
        """Take the reply of one stream's read, and return whether there is nothing more to read now."""
        if _is_wrong_type(reply):
            self._stop(stream)
            return True
        if isinstance(reply, ResponseError):
            raise reply
        return self._deliver(reply, {stream.key: stream}) < ENTRIES_PER_READ or stream.stopped

    def _start_blocking(self, stream: DeltaStream) -> None:
        if self._joining.get(stream.key) is not stream:  # It left or stopped meanwhile.
            return
        del self._joining[stream.key]
        self._reading[stream.key] = stream
        if stream.is_fresh:
            self._fresh[stream.key] = stream
        self._read_lacks_streams = self._read_in_flight
        self._streams_changed.set()

    async def _end_blocking_read(self, link: RedisLink) -> None:
        """Make the blocking read begin anew, if streams joined while it was under way."""
        while self._read_lacks_streams and self._blocking_client_id is not None:
            try:
                if await link.call(b"CLIENT", b"UNBLOCK", b"%d" % self._blocking_client_id):
                    return
            except ResponseError:  # Not permitted: streams join when the read ends by itself.
                return
            # It does not block: it is on its way to the server, or back.
            self._read_ended.clear()
            if self._read_lacks_streams:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_UNBLOCK_PAUSE_SECONDS):
                        await self._read_ended.wait()

    def _end_last_reads(self) -> None:
        for _, done in self._last_reads:
            if not done.done():
                done.set_result(None)
        self._last_reads.clear()

    # Entries

    def _deliver(self, reply: Reply, streams: dict[bytes, DeltaStream]) -> int:
        """Queue what a read brought, and return how many entries that was."""
        if reply is None:
            return 0
        found = cast("list[tuple[bytes, list[RawEntry]]]", reply)
        for key, entries in found:
            stream = streams.get(key)
            if stream is None:  # It left while the read was under way.
                continue
            self._count_malformed(stream.receive(entries))
            self._fresh.pop(key, None)
            if stream.stopped:
                self.leave(stream)
        if self._on_read is not None:
            self._on_read(self._describe([entry for _, entries in found for entry in entries]))
        return sum(len(entries) for _, entries in found)

    def _describe(self, entries: Sequence[RawEntry]) -> DeltaRead:
        oldest = min(entry_milliseconds(entry_id) for entry_id, _ in entries) / 1000
        size = sum(len(part) for _, fields in entries for part in fields or ())
        return DeltaRead(len(entries), size, max(self._clock() - oldest, 0.0))

    def _count_malformed(self, count: int) -> None:
        if count and not self.ignored_entry_count:
            logger.warning("A delta entry of the Horde could not be read; it and others like it are ignored.")
        self.ignored_entry_count += count

    def _stop(self, stream: DeltaStream) -> None:
        stream.stop()
        self.leave(stream)


def _is_wrong_type(reply: Reply | ResponseError) -> bool:
    return isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")
