"""Open requests in Redis, so that those of a front that died are cancelled by another one (decision 0044).

Each front has an id, a lease that it renews, and a record for every operation that may exist on the Horde. Whoever
finds a lease that has run out takes its records over, each by exactly one front, and cancels them like its own.

Redis is told in batches, in the background: no request waits for it, and without it nothing changes for them. A lease
also runs out when Redis stood still, or when everything did. So a front looks at those of others only when it was
itself in contact for the whole time of a lease, by the server's clock: whoever else was held up had time to renew.
"""

import asyncio
import functools
import hashlib
import random
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, cast

from loguru import logger
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.oai.cancel import MAX_FAILED_CANCELS, CancelTarget
from horde.oai.native_status import NativeStatus
from horde.oai.open_records import OpenRecord, OpenRecords
from horde.oai.open_request_scripts import ADOPT, KEEP, LEAVE
from horde.oai.redis_link import LINK_ERRORS, OutageLog, RedisLink, Reply
from horde.oai.sealed_caller import CallerSealer, SealError

__all__ = ["OpenRequestKeeper"]

_BATCH: Final = 256
"""Records in one command: they take the server well under a millisecond."""

_PAGE: Final = 256
"""Records taken over at once; the next ones follow when their cancels have been tried."""

_GATHER_SECONDS: Final = 0.02
"""Shortest time between two batches. A front that dies leaves no record of the operations begun in it."""

_RENEWALS: Final = 5
"""Renewals in the time of a lease."""

_LIMIT_SECONDS: Final = 5.0
_LAST_LIMIT_SECONDS: Final = 0.5
"""Time of what is said at the stop: a front that stops has promised when it is gone."""

_FIRST_BACKOFF_SECONDS: Final = 0.1
_LAST_BACKOFF_SECONDS: Final = 5.0


class AdoptingCancels(Protocol):
    """Cancels what was taken over."""

    async def cancel(self, target: CancelTarget) -> NativeStatus | None:
        """Cancel, and keep for another try what fails."""

    @property
    def failed_count(self) -> int:
        """How many cancels wait for another try."""


class OpenRequestKeeper:
    """Keeps this front's records in Redis, and takes over those of fronts that are gone.

    Args:
        redis: Client of the Horde's server.
        records: What is open in this process.
        cancels: Cancels what was taken over; they close its records.
        sealer: Encrypts the records.
        lease_seconds: Time after which a front that is not heard of counts as gone.
        clock: Monotonic seconds, those of the cancels.
        wall_clock: Unix seconds.

    Attributes:
        front_id: This front's id.
        renewals: Batches that reached Redis.
        failures: Times that Redis failed.
    """

    def __init__(
        self,
        redis: Redis,
        records: OpenRecords,
        cancels: AdoptingCancels,
        sealer: CallerSealer,
        *,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.front_id = uuid.uuid4().hex
        self.renewals = 0
        self.failures = 0
        self._redis = redis
        self._records = records
        self._cancels = cancels
        self._sealer = sealer
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        # One tag for all keys: a cluster keeps them on one server.
        self._prefix = f"horde:oai:{{{sealer.realm}}}:"
        self._contact: tuple[int, int] | None = None
        self._backoffs = 0
        self._adopting: asyncio.Task[None] | None = None
        self._outage = OutageLog("The registry of open requests", "If this front died now, its requests would run on.")

    async def run(self) -> None:
        """Keep the records until cancelled."""
        link = RedisLink(self._redis, "horde-front-open-requests", limit_seconds=_LIMIT_SECONDS)
        try:
            while True:
                try:
                    await link.open()
                    await self._follow(link)
                except LINK_ERRORS as error:
                    self.failures += 1
                    self._records.stop_following()
                    self._outage.begin(error)
                    await link.close()
                    await asyncio.sleep(self._next_backoff())
        finally:
            await link.close()
            if self._adopting is not None:
                self._adopting.cancel()
                await asyncio.wait({self._adopting})

    async def leave(self) -> None:
        """Say what has ended, and end the lease: another front may take over at once what is left."""
        link = RedisLink(self._redis, "horde-front-open-requests", limit_seconds=_LAST_LIMIT_SECONDS)
        try:
            async with asyncio.timeout(_LAST_LIMIT_SECONDS):
                await link.open()
                self._records.begin_anew()
                await self._keep(link, begin=True)
                while self._records.has_changes:
                    await self._keep(link)
                await _run_script(link, LEAVE, self._keys, [self.front_id.encode()])
        except LINK_ERRORS as error:
            self._outage.begin(error)
        finally:
            await link.close()

    @property
    def _keys(self) -> list[bytes]:
        return [f"{self._prefix}fronts".encode(), f"{self._prefix}open:{self.front_id}".encode()]

    async def _follow(self, link: RedisLink) -> None:
        """Bring every change to Redis and renew the lease, until the connection fails."""
        self._contact = None
        self._records.begin_anew()
        expired = await self._keep(link, begin=True)
        self._outage.end()
        while True:
            self._backoffs = 0
            if expired and self._may_adopt():
                await self._adopt(link)
            await self._wait_for_changes()
            known = await self._keep(link)
            if known is None:
                logger.warning("Redis had forgotten this front, or another one took it for gone and cancelled for it.")
                self._records.begin_anew()
                known = await self._keep(link, begin=True)
            expired = known

    async def _wait_for_changes(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        if not self._records.changed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_seconds / _RENEWALS):
                    await self._records.changed.wait()

    async def _keep(self, link: RedisLink, *, begin: bool = False) -> int | None:
        """Send a batch; return how many leases of others have run out, None when Redis does not know this front."""
        changes = self._records.take_changes(_BATCH)
        lease, kept = _milliseconds(self._lease_seconds), _milliseconds(CHAT_REQUEST_EXPIRY_SECONDS)
        arguments = [self.front_id.encode(), lease, kept, b"1" if begin else b"0", b"%d" % len(changes.written)]
        for key, record in changes.written:
            arguments += [key.encode(), self._sealer.seal(key, record.caller, record.opened_at)]
        arguments += [key.encode() for key in changes.removed]
        known, now, expired = cast("list[int]", await _run_script(link, KEEP, self._keys, arguments))
        self.renewals += 1
        if not known:
            return None
        since, last = self._contact or (now, now)
        # A gap of the server's clock is a time in which the others could not renew either.
        gap = now - last > 1000 * self._lease_seconds / 2 or now < last
        self._contact = (now if gap else since, now)
        return expired

    def _may_adopt(self) -> bool:
        since, last = self._contact or (0, 0)
        is_busy = self._adopting is not None and not self._adopting.done()
        has_room = self._cancels.failed_count < MAX_FAILED_CANCELS // 2
        return last - since >= 1000 * self._lease_seconds and has_room and not is_busy

    async def _adopt(self, link: RedisLink) -> None:
        """Take over a page of the records of a front that is gone, and begin to cancel them."""
        kept = _milliseconds(CHAT_REQUEST_EXPIRY_SECONDS)
        arguments = [self.front_id.encode(), kept, b"%d" % _PAGE, f"{self._prefix}open:".encode()]
        reply = await _run_script(link, ADOPT, self._keys, arguments)
        if not isinstance(reply, list) or not reply:
            return
        gone, fields = cast("tuple[bytes, list[bytes]]", reply)
        targets = self._read_records(fields)
        if targets:
            logger.warning("The front {} is gone; {} of its requests are cancelled", gone.decode(), len(targets))
        self._adopting = asyncio.create_task(self._cancel_all(targets), name="front - cancels of a front that is gone")

    def _read_records(self, fields: Sequence[bytes]) -> list[CancelTarget]:
        records: list[tuple[str, OpenRecord]] = []
        for name, sealed in zip(fields[::2], fields[1::2], strict=True):
            key = name.decode(errors="replace")
            try:
                records.append((key, OpenRecord(*self._sealer.open(key, sealed))))
            except SealError:
                logger.warning("A record of an open request in Redis could not be read and is removed")
                self._records.reject(key)
        self._records.adopt(records)
        now, wall_now = self._clock(), self._wall_clock()
        return [CancelTarget(each.caller, now - max(0.0, wall_now - each.opened_at), key) for key, each in records]

    async def _cancel_all(self, targets: Sequence[CancelTarget]) -> None:
        # The cancels are tasks of their own: when this front stops meanwhile, its drain ends them.
        await asyncio.gather(*(self._cancels.cancel(target) for target in targets))
        self._records.changed.set()  # The next page need not wait for the next renewal.

    def _next_backoff(self) -> float:
        pause = min(_FIRST_BACKOFF_SECONDS * 2.0**self._backoffs, _LAST_BACKOFF_SECONDS)
        self._backoffs = min(self._backoffs + 1, 16)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads attempts


@functools.cache
def _digest(script: str) -> bytes:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest().encode()


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % max(1, round(1000 * seconds))


async def _run_script(link: RedisLink, script: str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Reply:
    """Run a script by its digest, and send it whole when the server does not have it."""
    rest = [b"%d" % len(keys), *keys, *arguments]
    try:
        return await link.call(b"EVALSHA", _digest(script), *rest)
    except NoScriptError:
        return await link.call(b"EVAL", script.encode(), *rest)
