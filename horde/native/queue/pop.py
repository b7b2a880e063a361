"""Pops: heartbeat, then claims until one succeeds or the wait is over (NAT-13, NAT-14, DLT-4).

A held pop keeps no database connection. It is woken by a submit that fits, looks again by itself, checks before each
claim that its client is still there, and is answered empty at shutdown.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import orjson
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatReasoningEffort

from horde.chat_contract import SignalEvent
from horde.native.db import queries
from horde.native.eligibility import Fields, WorkerFacts
from horde.native.errors import RefusalError, ReturnCode
from horde.native.held_pops import HeldPop
from horde.native.lifecycle import JobState
from horde.native.payload import with_members
from horde.native.queue.settlement import tell_requeued
from horde.native.state import NativeState
from horde.native.users import User
from horde.native.wire import PopBody

__all__ = ["PopAnswer", "pop_job"]

_REMEMBERED_MODELS: Final = 10_000
"""Model names this process remembers as known."""


@dataclass(frozen=True, slots=True)
class PopAnswer:
    """What a pop is answered.

    Attributes:
        body: The answer as JSON.
        brings_job: Whether there is a job in it.
    """

    body: bytes
    brings_job: bool


async def pop_job(state: NativeState, user: User, body: PopBody, gone: asyncio.Event, base_url: str) -> PopAnswer:
    """Return the answer of a pop: a job, or none with the causes by which requests were passed over.

    Args:
        state: The process's parts.
        user: Whose key it is: the worker's owner.
        body: The pop.
        gone: Set when the client has left.
        base_url: The Horde's address as the worker reaches it, for the URLs of images.

    Raises:
        RefusalError: ``AnonForbiddenWorker``, ``NotOwner``, ``WorkerMaintenance``, ``UnknownChatModel`` or
            ``ChatImageStorageUnavailable``.
    """
    if user.is_anonymous:
        raise RefusalError(ReturnCode.ANON_FORBIDDEN_WORKER)
    facts, maintenance = await _register(state, user, body)
    if body.running is not None:
        await _release_lost_jobs(state, facts.id, body)
    if body.pop_id is not None and (answer := await _find_popped(state, facts, body.pop_id, base_url)):
        return answer
    if maintenance is not None:
        raise RefusalError(ReturnCode.WORKER_MAINTENANCE, maintenance or None)
    if facts.model_id is None:
        return _empty(state, facts)
    with state.held_pops.hold(facts) as held:
        answer = await _claim_until(state, body, held, gone, base_url)
    # Woken since its last claim: its client left, its wait is over, or that claim brought it another request.
    await state.held_pops.pass_on(held, state.publisher)
    return answer or _empty(state, facts)


def _empty(state: NativeState, facts: WorkerFacts) -> PopAnswer:
    state.metrics.popped("empty")
    return PopAnswer(orjson.dumps({"id": None, "skipped": state.queue.view.skipped(facts)}), brings_job=False)


async def _register(state: NativeState, user: User, body: PopBody) -> tuple[WorkerFacts, str | None]:
    """Write the worker's declaration and heartbeat, and return what is known of it and why it is in maintenance.

    The reason is None for a worker that is not, and empty for one whose owner gave none.

    A worker in maintenance gets nothing new, but still hears of the job that an earlier copy of the pop got.
    """
    model_id = body.model_id if body.chat_jobs else None
    if model_id is not None and model_id not in state.known_models:
        await _know_model(state, model_id)
    limits = body.chat_limits if body.chat_jobs else None
    row = await state.pool.fetchrow(
        queries.REGISTER_POP,
        body.name,
        user.id,
        model_id,
        sorted(set(body.chat_features)) if model_id else [],
        sorted(set(body.image_transports)) if model_id else [],
        limits.max_length if limits else 0,
        limits.max_context_length if limits else 0,
        limits.tools_max_temperature if limits else None,
        body.threads,
        body.bridge_agent,
    )
    if row is None:
        raise RefusalError(ReturnCode.NOT_OWNER, "A worker of this name belongs to another user.")
    speed = row["tokens_per_second"] or 0.0
    facts = WorkerFacts(
        id=row["id"],
        model_id=model_id,
        features=frozenset(body.chat_features),
        image_transports=frozenset(body.image_transports),
        max_length=limits.max_length if limits else 0,
        max_context_length=limits.max_context_length if limits else 0,
        tools_max_temperature=limits.tools_max_temperature if limits else None,
        trusted=user.trusted,
        fast=speed >= state.settings.slow_worker_tokens_per_second,
    )
    return facts, (row["maintenance_message"] or "") if row["maintenance"] else None


async def _know_model(state: NativeState, model_id: str) -> None:
    if state.settings.auto_add_models:
        await state.pool.execute(queries.ADD_MODEL, model_id)
    elif not await state.pool.fetchval(queries.IS_MODEL_KNOWN, model_id):
        raise RefusalError(ReturnCode.UNKNOWN_CHAT_MODEL, f"The Horde does not know the model: {model_id[:128]}")
    if len(state.known_models) >= _REMEMBERED_MODELS:
        state.known_models.clear()
    state.known_models.add(model_id)


async def _release_lost_jobs(state: NativeState, worker_id: UUID, body: PopBody) -> None:
    """Queue again what the worker was given and does not know of; no attempt is counted."""
    rows = await state.pool.fetch(
        queries.RELEASE_LOST_JOBS,
        JobState.RELEASED.value,
        None,
        None,
        worker_id,
        body.running,
        body.pop_id,
    )
    for row in rows:
        await tell_requeued(state, row, job_id=row["job_id"], job_state=JobState.RELEASED)


async def _find_popped(state: NativeState, facts: WorkerFacts, pop_id: UUID, base_url: str) -> PopAnswer | None:
    """Return the answer that an earlier copy of this pop got, or None; a job that ended since is no job."""
    row = await state.pool.fetchrow(queries.FIND_POPPED_JOB, facts.id, pop_id)
    if row is None:
        return None
    if row["state"] != JobState.PROCESSING:
        return _empty(state, facts)
    return await _answer(state, facts, row["job_id"], row, base_url)


async def _claim_until(
    state: NativeState, body: PopBody, held: HeldPop, gone: asyncio.Event, base_url: str
) -> PopAnswer | None:
    """Claim now and after each wake-up, until there is a job, the wait is over, or there is nobody to answer."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + body.wait_seconds
    while not gone.is_set() and not state.stopping.is_set():
        # Cleared before the claim: a submit that is committed during it must wake the pop again.
        held.woken.clear()
        if (answer := await _claim(state, held.facts, body.pop_id, base_url)) is not None:
            return answer
        left = min(deadline - clock(), state.settings.relook_seconds)
        if left <= 0:
            return None
        try:
            async with asyncio.timeout(left):
                await held.woken.wait()
        except TimeoutError:
            if clock() >= deadline:
                return None
    return None


async def _claim(state: NativeState, facts: WorkerFacts, pop_id: UUID | None, base_url: str) -> PopAnswer | None:
    job_id = uuid4()
    try:
        row = await state.pool.fetchrow(
            queries.CLAIM_JOB,
            facts.id,
            job_id,
            pop_id,
            state.queue.view.load(facts.model_id or "").speed,
            state.settings.slow_worker_tokens_per_second,
        )
    except asyncpg.UniqueViolationError:
        # Another copy of this pop got a job since they were looked for.
        return None if pop_id is None else await _find_popped(state, facts, pop_id, base_url)
    if row is None:
        return None
    await state.publisher.signal(row["request_id"], SignalEvent.STARTED)
    return await _answer(state, facts, job_id, row, base_url)


async def _answer(state: NativeState, facts: WorkerFacts, job_id: UUID, row: Fields, base_url: str) -> PopAnswer:
    settings = state.settings
    ttl = max(0, round(row["ttl"]))
    payload = _payload(state, facts, row)
    if state.images is not None:
        payload = await state.images.hand_out(payload, job_id, ttl, facts.image_transports, base_url)
    state.metrics.popped("job")
    answer = orjson.dumps(
        {
            "id": str(job_id),
            "model": row["model"],
            "chat": True,
            "payload": orjson.Fragment(payload),
            "ttl": ttl,
            "progress": {
                "interval_seconds": settings.progress_interval_seconds,
                "lease_seconds": settings.lease_seconds,
            },
        },
    )
    return PopAnswer(answer, brings_job=True)


def _payload(state: NativeState, facts: WorkerFacts, row: Fields) -> bytes:
    """Return the stored payload with what depends on the worker: live text, and the default effort (C18, RSN-9)."""
    body: bytes = row["body"]
    added: dict[str, Any] = {}
    if row["stream"] and state.publisher.streams:
        added["stream_progress"] = True
    effort = ChatFeature.REASONING_EFFORT.value
    if effort in facts.features and effort not in orjson.loads(body):
        added[effort] = ChatReasoningEffort.MEDIUM.value
    return with_members(body, added)
