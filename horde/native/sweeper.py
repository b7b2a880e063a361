"""The sweeper: ends attempts whose lease ran out and requests whose time is over, and deletes old records (NAT-11).

The sweeper's commit ends an attempt, not the clock: until then a late post still renews the lease. When nobody could
sweep for a while (an outage of the Horde or of its database), nobody could post either: every lease is first extended
by that time. Many processes may run sweepers: what one is ending, another passes over.

Every ending is a transaction of its own: its locks are one request's, in the order of all others, and one that fails
keeps no other from ending.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg
from loguru import logger

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.native.db import queries, traffic
from horde.native.db.engine import DATABASE_ERRORS
from horde.native.eligibility import Fields
from horde.native.errors import RETURN_CODES, ReturnCode
from horde.native.lifecycle import MAX_ATTEMPTS, JobState, RequestState
from horde.native.queue.settlement import (
    Fault,
    end_request,
    requeue_request,
    tell_ended,
    tell_requeued,
)
from horde.native.state import NativeState

__all__ = ["Sweeper"]

_SWEEP_LOCK: Final = 0x73776565
_BATCH: Final = 200
"""Attempts and requests ended in one sweep."""

_REMEMBERED_FAILURES: Final = 1000
"""Requests that could not be ended which this process remembers, so that each is told of once."""

_MIN_OUTAGE_SECONDS: Final = 5.0
"""Without a sweep for longer than this (and than five rounds), leases are extended."""

_KEEP_SECONDS: Final = float(CHAT_REQUEST_EXPIRY_SECONDS)
"""How long a record stays readable after its request's expiry."""

_ABORTED: Final = Fault(ReturnCode.ABORTED_GEN, RETURN_CODES[ReturnCode.ABORTED_GEN].meaning)
_EXPIRED: Final = Fault(ReturnCode.REQUEST_EXPIRED, RETURN_CODES[ReturnCode.REQUEST_EXPIRED].meaning)


@dataclass(frozen=True, slots=True)
class _Ending:
    """What a sweep did to a request, to be told once it is committed."""

    request: Fields
    request_state: RequestState
    job_state: JobState
    requeued: Fields | None = None


type _Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
type _End = Callable[[_Connection, Fields], Awaitable[_Ending | None]]


class Sweeper:
    """Sweeps for one process.

    Args:
        state: The process's parts.
    """

    def __init__(self, state: NativeState) -> None:
        self._state = state
        self._failing: set[UUID] = set()
        self._outage_seconds = max(_MIN_OUTAGE_SECONDS, 5 * state.settings.sweep_seconds)

    async def run(self) -> None:
        """Sweep again and again; runs until it is cancelled."""
        while True:
            try:
                while await self.sweep():
                    pass
            except DATABASE_ERRORS as error:
                logger.warning("The queue could not be swept ({})", type(error).__name__)
            await asyncio.sleep(self._state.settings.sweep_seconds)

    async def sweep(self) -> bool:
        """Sweep once; True when there may be more to do."""
        async with self._state.pool.acquire() as connection:
            return await self._start(connection) and await self._end_expired(connection)

    async def _start(self, connection: _Connection) -> bool:
        """Extend leases after an outage, which is committed before anything is ended; False while another starts."""
        async with connection.transaction():
            seconds = await connection.fetchval(queries.MARK_SWEPT, _SWEEP_LOCK)
            if seconds is None:
                return False
            if seconds > self._outage_seconds:
                extended = await connection.execute(queries.EXTEND_DEADLINES, seconds)
                logger.info("Nobody swept for {:.0f} s; leases are extended by that time ({})", seconds, extended)
        return True

    async def _end_expired(self, connection: _Connection) -> bool:
        jobs = await connection.fetch(queries.FIND_EXPIRED_JOBS, self._outage_seconds, _BATCH)
        ended = [await self._end_one(connection, self._end_attempt, job) for job in jobs]
        requests = await connection.fetch(queries.FIND_EXPIRED_REQUESTS, _BATCH)
        ended += [await self._end_one(connection, _expire, request) for request in requests]
        await connection.execute(queries.PURGE_RECORDS, _KEEP_SECONDS, _BATCH, traffic.MAX_APPLICATIONS_A_DAY)
        await connection.execute(queries.PURGE_TOMBSTONES, 2 * _KEEP_SECONDS)
        await connection.execute(traffic.PURGE_TRAFFIC, traffic.TRAFFIC_DAYS)
        return sum(ended) >= _BATCH

    async def _end_one(self, connection: _Connection, end: _End, found: Fields) -> bool:
        """End one attempt or request and tell of it; False when it had moved on or could not be ended."""
        try:
            async with connection.transaction():
                ending = await end(connection, found)
        except (asyncpg.PostgresError, TimeoutError) as error:
            if connection.is_closed():
                raise
            self._note_failure(found["request_id"], error)
            return False
        self._failing.discard(found["request_id"])
        if ending is None:
            return False
        await self._tell(ending)
        return True

    async def _end_attempt(self, connection: _Connection, found: Fields) -> _Ending | None:
        """End an attempt whose time ran out: queue its request again, or fault it after the last attempt."""
        job = await connection.fetchrow(
            queries.LOCK_EXPIRED_JOB, self._outage_seconds, found["request_id"], found["job_id"]
        )
        if job is None:
            return None
        if job["attempts"] < MAX_ATTEMPTS:
            row = await requeue_request(
                connection,
                request_id=job["request_id"],
                job_id=job["job_id"],
                job_state=JobState.LEASE_EXPIRED,
                fault=_ABORTED,
            )
            return _Ending(job, RequestState.WAITING, JobState.LEASE_EXPIRED, row)
        await end_request(
            connection,
            request_id=job["request_id"],
            user_id=job["user_id"],
            job_id=job["job_id"],
            request_state=RequestState.FAULTED,
            job_state=JobState.LEASE_EXPIRED,
            fault=_ABORTED,
        )
        return _Ending(job, RequestState.FAULTED, JobState.LEASE_EXPIRED)

    def _note_failure(self, request_id: UUID, error: Exception) -> None:
        if request_id in self._failing or len(self._failing) >= _REMEMBERED_FAILURES:
            return
        self._failing.add(request_id)
        logger.error("The request {} could not be ended ({}); trying again", request_id, type(error).__name__)

    async def _tell(self, ending: _Ending) -> None:
        request = ending.request
        if ending.requeued is not None:
            await tell_requeued(self._state, ending.requeued, job_id=request["job_id"], job_state=ending.job_state)
            return
        await tell_ended(
            self._state,
            request_id=request["request_id"],
            job_id=request["job_id"],
            stream=request["stream"],
            request_state=ending.request_state,
            job_state=ending.job_state,
        )


async def _expire(connection: _Connection, found: Fields) -> _Ending | None:
    """End a request whose time is over."""
    request = await connection.fetchrow(queries.LOCK_EXPIRED_REQUEST, found["request_id"])
    if request is None:
        return None
    await end_request(
        connection,
        request_id=request["request_id"],
        user_id=request["user_id"],
        job_id=request["job_id"],
        request_state=RequestState.EXPIRED,
        job_state=JobState.EXPIRED,
        fault=_EXPIRED,
    )
    return _Ending(request, RequestState.EXPIRED, JobState.EXPIRED)
