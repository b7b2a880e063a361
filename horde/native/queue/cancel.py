"""Cancels, by request and by operation key (CAN-11, CAN-12, CAN-13, KUD-16)."""

from typing import Any
from uuid import UUID

from horde.native.db import queries, reads
from horde.native.eligibility import Fields
from horde.native.errors import RefusalError, ReturnCode
from horde.native.kudos import model_multiplier, price_cents
from horde.native.ledger import payer_account, spendable_account
from horde.native.lifecycle import OPEN_STATES, JobState, RequestState
from horde.native.queue.progress import streamed_tokens
from horde.native.queue.settlement import Charge, Executor, end_request, tell_ended
from horde.native.queue.status import read_status
from horde.native.state import NativeState
from horde.native.users import User

__all__ = ["cancel_operation", "cancel_request"]


async def cancel_request(state: NativeState, user: User, request_id: UUID) -> dict[str, Any]:
    """Cancel a request and return its status; idempotent, and a reply that was committed before stays.

    Raises:
        RefusalError: ``RequestNotFound``.
    """
    async with state.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(queries.LOCK_REQUEST, request_id, user.id)
        if row is None:
            raise RefusalError(ReturnCode.REQUEST_NOT_FOUND)
        cancelled = row["state"] in OPEN_STATES
        charge = await _charge(connection, user, row) if cancelled else Charge()
        if cancelled:
            await end_request(
                connection,
                request_id=request_id,
                user_id=user.id,
                job_id=row["job_id"],
                request_state=RequestState.CANCELLED,
                job_state=JobState.CANCELLED,
                charge=charge,
            )
        # Read before the commit: after it nothing may fail that the answer needs.
        status = await read_status(state, user, request_id, executor=connection)
    if cancelled:
        state.metrics.kudos_charged(charge.cents)
        await tell_ended(
            state,
            request_id=request_id,
            job_id=row["job_id"],
            stream=row["stream"],
            request_state=RequestState.CANCELLED,
            job_state=JobState.CANCELLED,
        )
    return status


async def _charge(connection: Executor, user: User, request: Fields) -> Charge:
    """Return what a cancel costs: what the running attempt has streamed, priced as a reply of that length."""
    if request["job_id"] is None or not request["stream"]:
        return Charge()
    job = await connection.fetchrow(reads.READ_STREAMED, request["job_id"])
    if job is None:
        return Charge()
    tokens = min(streamed_tokens(job["streamed_ascii"], job["streamed_wide"]), job["max_length"])
    if tokens == 0:
        return Charge()
    multiplier = model_multiplier(job["model"], job["parameters_billions"])
    return Charge(
        price_cents(tokens, multiplier, job["image_count"]),
        payer_account(user.id, request["id"]),
        spendable_account(job["owner_id"]),
    )


async def cancel_operation(state: NativeState, user: User, key: UUID) -> dict[str, Any]:
    """Cancel the request of an operation key, or make sure that none will come of it.

    Returns:
        The request's status, or ``{"tombstone": true}``.
    """
    if await state.pool.fetchval(queries.LEAVE_TOMBSTONE, user.id, key):
        return {"tombstone": True}
    claim = await state.pool.fetchrow(queries.FIND_CLAIM, user.id, key)
    if claim is None or claim["request_id"] is None:
        return {"tombstone": True}
    return await cancel_request(state, user, claim["request_id"])
