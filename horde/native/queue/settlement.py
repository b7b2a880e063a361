"""How an attempt ends, for submits, cancels and the sweeper alike: in the database first, then told.

Every function that writes takes a connection or the pool: with a connection it is part of the caller's transaction,
and the caller tells after its commit.
"""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import asyncpg

from horde.chat_contract import SignalEvent
from horde.native.db import queries
from horde.native.eligibility import Fields, RequestNeeds
from horde.native.errors import ReturnCode
from horde.native.ledger import held_account, spendable_account
from horde.native.lifecycle import ENDED_REASONS, FINAL_SIGNALS, JobState, RequestState
from horde.native.state import NativeState

__all__ = ["Charge", "Executor", "Fault", "end_request", "requeue_request", "tell_ended", "tell_requeued"]


class Executor(Protocol):
    """The pool, or a connection within a transaction."""

    async def fetchrow(self, query: str, *args: object) -> asyncpg.Record | None:
        """Run a statement and return its first row."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What is paid for an attempt.

    Attributes:
        cents: Hundredths of a kudos; 0 for an attempt that costs nothing.
        payer: Account it is taken from.
        payee: Account it goes to: the worker's owner's.
    """

    cents: int = 0
    payer: int = 0
    payee: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request ended without a reply, as its status tells."""

    code: ReturnCode
    message: str


async def end_request(
    executor: Executor,
    *,
    request_id: UUID,
    user_id: int,
    job_id: UUID | None,
    request_state: RequestState,
    job_state: JobState,
    fault: Fault | None = None,
    charge: Charge = Charge(),
) -> bool:
    """End a request without a reply; False when it had moved on.

    Args:
        executor: The pool, or a connection within a transaction.
        request_id: The request.
        user_id: Who submitted it: its hold is released.
        job_id: The attempt that runs, or None for a request that waits; another one means it has moved on.
        request_state: Its new state.
        job_state: The attempt's new state.
        fault: What its status tells.
        charge: What is paid for what was streamed.
    """
    row = await executor.fetchrow(
        queries.END_REQUEST,
        request_id,
        job_id,
        request_state.value,
        job_state.value,
        fault.code.value if fault else None,
        fault.message if fault else None,
        charge.cents,
        charge.payer,
        charge.payee,
        spendable_account(user_id),
        held_account(user_id),
    )
    return row is not None


async def requeue_request(
    executor: Executor,
    *,
    request_id: UUID,
    job_id: UUID,
    job_state: JobState,
    fault: Fault,
) -> Fields | None:
    """End an attempt and queue its request again; return the row of the request, or None when it had moved on."""
    return await executor.fetchrow(
        queries.REQUEUE_REQUEST, job_state.value, fault.code.value, fault.message, request_id, job_id
    )


async def tell_ended(
    state: NativeState,
    *,
    request_id: UUID,
    job_id: UUID | None,
    stream: bool,
    request_state: RequestState,
    job_state: JobState,
) -> None:
    """Tell fronts of a request that ended without a reply, once that is committed."""
    state.metrics.request_ended(request_state)
    if job_id is not None:
        state.metrics.attempt_ended(job_state)
    if stream and job_id is not None:
        await state.publisher.end_generation(request_id, job_id, ENDED_REASONS[job_state])
    await state.publisher.signal(request_id, FINAL_SIGNALS[request_state])


async def tell_requeued(state: NativeState, row: Fields, *, job_id: UUID, job_state: JobState) -> None:
    """Tell fronts and pops of a request that waits again, once that is committed.

    Args:
        state: The process's parts.
        row: The request, as :data:`queries.REQUEUE_REQUEST` returns it.
        job_id: The attempt that ended.
        job_state: How it ended.
    """
    state.metrics.attempt_ended(job_state)
    if row["stream"]:
        await state.publisher.end_generation(row["id"], job_id, ENDED_REASONS[job_state])
    await state.publisher.signal(row["id"], SignalEvent.REQUEUED)
    await state.held_pops.announce(RequestNeeds.from_row(row, row["models"]), state.publisher)
