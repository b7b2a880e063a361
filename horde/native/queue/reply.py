"""Submits of workers: replies and faults, each job once (CNF-10, CNF-11, FMT-12, KUD-15, WRK-4)."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import orjson
from horde_sdk.worker.chat_declaration import ChatFaultReason

from horde.chat_contract import SignalEvent, estimate_text_tokens
from horde.native.conformance import NonconformantReplyError, conform_reply
from horde.native.db import queries
from horde.native.db.engine import afterwards
from horde.native.eligibility import Fields
from horde.native.errors import RefusalError, ReturnCode, ValidationFailedError
from horde.native.kudos import model_multiplier, price_cents, to_kudos
from horde.native.ledger import held_account, payer_account, spendable_account
from horde.native.lifecycle import MAX_ATTEMPTS, SUBMITTED_STATES, JobState, RequestState
from horde.native.queue.settlement import Fault, end_request, requeue_request, tell_ended, tell_requeued
from horde.native.state import NativeState
from horde.native.users import User
from horde.native.wire import FaultBody, ReplyBody

__all__ = ["FAULT_SENTENCES", "submit_fault", "submit_reply"]

MAX_REPLY_BYTES: Final = 1024 * 1024
"""The most UTF-8 bytes of all texts of a reply."""

_VERIFY_IN_THREAD_BYTES: Final = 4096
"""A reply larger than this is verified in a thread, so that the event loop does not wait for it."""

FAULT_SENTENCES: Final[Mapping[str, str]] = {
    ChatFaultReason.PROMPT_OVERFLOW.value: "The worker could not fit the prompt into its context.",
    ChatFaultReason.UNBUILDABLE_GRAMMAR.value: "The worker could not enforce the request's tools or response format.",
    ChatFaultReason.TOOL_VIOLATION.value: "The model's reply did not follow the request's tool choice.",
    ChatFaultReason.REPLY_REFUSED.value: "The worker's reply was refused.",
    ChatFaultReason.GENERATION_ERROR.value: "The worker failed while it generated the reply.",
}
"""What a status says of each fault reason: the Horde's own words, never the worker's."""

_HOPELESS_REASONS: Final = frozenset(
    {ChatFaultReason.PROMPT_OVERFLOW.value, ChatFaultReason.UNBUILDABLE_GRAMMAR.value},
)
"""Reasons that another worker would give as well: the request faults at once."""


async def submit_reply(state: NativeState, user: User, body: ReplyBody) -> float:
    """Take a reply in and return the reward in kudos.

    Args:
        state: The process's parts.
        user: Whose key it is; only the worker's owner may submit.
        body: The reply.

    Raises:
        RefusalError: ``InvalidJobID``, ``NotOwner``, ``DuplicateGen``, or ``ChatSubmitNonconformant``: the reply was
            refused, which ended the attempt.
        ValidationFailedError: The submit names another model than the job's.
    """
    job = await _running_job(state, user, body.id)
    if body.model_id != job["model"]:
        raise ValidationFailedError({"model_id": "'model_id' is not the model of this job."})
    texts = body.message.texts()
    try:
        message = await _verified(job, body, sum(len(text.encode()) for text in texts))
    except NonconformantReplyError as error:
        fault = Fault(ReturnCode.CHAT_SUBMIT_NONCONFORMANT, str(error))
        if not await _end_attempt(state, job, JobState.REFUSED, fault, hopeless=False):
            await _refuse_ended(state, job["job_id"])
        raise RefusalError(ReturnCode.CHAT_SUBMIT_NONCONFORMANT, str(error)) from None
    tokens = min(estimate_text_tokens("".join(texts)), job["max_length"])
    multiplier = model_multiplier(job["model"], job["parameters_billions"])
    price = price_cents(tokens, multiplier, job["image_count"])
    if not await _settle(state, job, body, message, price, tokens):
        await _refuse_ended(state, job["job_id"])
    state.metrics.replied(job["popped_at"], tokens, price)
    await state.publisher.signal(job["request_id"], SignalEvent.FINISHED)
    return to_kudos(price)


async def submit_fault(state: NativeState, user: User, body: FaultBody) -> float:
    """Take a fault in and return the reward, which is none.

    A fault that only says that the reply was refused adds nothing to that refusal and changes nothing.

    Raises:
        RefusalError: ``InvalidJobID``, ``NotOwner`` or ``DuplicateGen``.
    """
    job = await _owned_job(state, user, body.id)
    if job["state"] == JobState.REFUSED and body.fault_reason == ChatFaultReason.REPLY_REFUSED.value:
        return 0.0
    _refuse_submitted(job["state"])
    sentence = FAULT_SENTENCES.get(body.fault_reason, FAULT_SENTENCES[ChatFaultReason.GENERATION_ERROR.value])
    fault = Fault(ReturnCode.CHAT_WORKER_FAULT, sentence)
    if not await _end_attempt(state, job, JobState.FAULTED, fault, hopeless=body.fault_reason in _HOPELESS_REASONS):
        await _refuse_ended(state, job["job_id"])
    with afterwards("the heartbeat of a worker that reported a fault"):
        await state.pool.execute(queries.TOUCH_WORKER, job["worker_id"])
    return 0.0


async def _owned_job(state: NativeState, user: User, job_id: UUID) -> Fields:
    job = await state.pool.fetchrow(queries.READ_JOB, job_id)
    if job is None:
        raise RefusalError(ReturnCode.INVALID_JOB_ID)
    if job["owner_id"] != user.id:
        raise RefusalError(ReturnCode.NOT_OWNER, "This job belongs to a worker of another user.")
    return job


async def _running_job(state: NativeState, user: User, job_id: UUID) -> Fields:
    job = await _owned_job(state, user, job_id)
    _refuse_submitted(job["state"])
    return job


def _refuse_submitted(job_state: str) -> None:
    if job_state in SUBMITTED_STATES:
        raise RefusalError(ReturnCode.DUPLICATE_GEN)
    if job_state != JobState.PROCESSING:
        raise RefusalError(ReturnCode.INVALID_JOB_ID)


async def _refuse_ended(state: NativeState, job_id: UUID) -> None:
    """Refuse a submit whose job ended between the look at it and the commit."""
    row = await state.pool.fetchrow(queries.READ_JOB, job_id)
    if row is not None:
        _refuse_submitted(row["state"])
    raise RefusalError(ReturnCode.INVALID_JOB_ID)


async def _verified(job: Fields, body: ReplyBody, size: int) -> dict[str, Any]:
    """Return the message to deliver.

    Raises:
        NonconformantReplyError: It is too large, or under ``strict`` it does not follow the request.
    """
    if size > MAX_REPLY_BYTES:
        raise NonconformantReplyError(f"The texts of a reply may take at most {MAX_REPLY_BYTES} bytes.")
    message = body.message.as_stored()
    if not job["strict"]:
        return message
    payload = orjson.loads(job["body"])
    if size < _VERIFY_IN_THREAD_BYTES and "response_format" not in payload:
        return conform_reply(payload, message, body.finish_reason)
    return await asyncio.to_thread(conform_reply, payload, message, body.finish_reason)


async def _settle(
    state: NativeState,
    job: Fields,
    body: ReplyBody,
    message: Mapping[str, Any],
    price: int,
    tokens: int,
) -> bool:
    """Commit the reply with everything that it moves; False when the attempt had ended."""
    row = await state.pool.fetchrow(
        queries.SETTLE_REPLY,
        job["request_id"],
        job["job_id"],
        RequestState.REPLIED.value,
        JobState.REPLIED.value,
        None,
        None,
        price,
        payer_account(job["user_id"], job["request_id"]),
        spendable_account(job["owner_id"]),
        spendable_account(job["user_id"]),
        held_account(job["user_id"]),
        orjson.dumps(message),
        body.finish_reason,
        body.native_finish_reason,
        body.prompt_tokens,
        body.completion_tokens,
        body.reasoning_tokens,
        tokens,
    )
    return row is not None


async def _end_attempt(state: NativeState, job: Fields, job_state: JobState, fault: Fault, *, hopeless: bool) -> bool:
    """End an attempt that brought no reply: queue the request again, or fault it; False when it had ended already."""
    request_id, job_id = job["request_id"], job["job_id"]
    if not hopeless and job["attempts"] < MAX_ATTEMPTS:
        row = await requeue_request(state.pool, request_id=request_id, job_id=job_id, job_state=job_state, fault=fault)
        if row is not None:
            await tell_requeued(state, row, job_id=job_id, job_state=job_state)
        return row is not None
    ended = await end_request(
        state.pool,
        request_id=request_id,
        user_id=job["user_id"],
        job_id=job_id,
        request_state=RequestState.FAULTED,
        job_state=job_state,
        fault=fault,
    )
    if ended:
        await tell_ended(
            state,
            request_id=request_id,
            job_id=job_id,
            stream=job["stream"],
            request_state=RequestState.FAULTED,
            job_state=job_state,
        )
    return ended
