"""Submits: claim first, then the checks, then one statement that writes everything (SUB-1, SUB-2, KUD-19)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.native.checks import SUBMIT_CHECKS, Draft, kudos_upfront
from horde.native.db import queries
from horde.native.eligibility import RequestNeeds
from horde.native.errors import RefusalError, ReturnCode
from horde.native.kudos import to_kudos
from horde.native.ledger import held_account, spendable_account
from horde.native.payload import build_payload
from horde.native.rate_limits import Caller, CallKind
from horde.native.state import NativeState
from horde.native.users import User

__all__ = ["SubmitAnswer", "find_claim", "submit_request"]

_OUTSIDE_IDENTITY: Final = frozenset({"operation_key"})
"""Keys that do not belong to what an operation is."""

_MAX_AGENT_LENGTH: Final = 512

_MAX_PAYLOAD_BYTES: Final = 12 * 1024 * 1024
"""Largest JSON of a job: with what a pop adds it stays under the 16 MiB that a worker reads."""


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """Answer of a submit.

    Attributes:
        status: 202 for a new request, 200 for one that was there, or for a dry run.
        body: The answer's JSON object.
    """

    status: int
    body: Mapping[str, Any]


async def submit_request(
    state: NativeState, user: User, raw: Mapping[str, Any], client_agent: str, *, source: str = ""
) -> SubmitAnswer:
    """Take in a request, or find the one that an earlier copy of the call made.

    Args:
        state: The process's parts.
        user: Who submits.
        raw: The decoded body.
        client_agent: The ``Client-Agent`` header, kept for statistics.
        source: What the client's address counts as; limits count the anonymous user by it.

    Raises:
        RefusalError: A check refused; nothing was written.
        ValidationFailedError: The body is not of the documented shape.
    """
    key = _operation_key(raw)
    if key is None or not _may_hold_images(raw):
        return await _submit(state, user, raw, key, client_agent, source)
    # A copy that comes while the first one's images are fetched waits for it, so that they are fetched once (IMG-4).
    async with state.turns.take((user.id, key)):
        return await _submit(state, user, raw, key, client_agent, source)


async def _submit(
    state: NativeState, user: User, raw: Mapping[str, Any], key: UUID | None, client_agent: str, source: str
) -> SubmitAnswer:
    dry_run = raw.get("dry_run") is True
    digest = _body_digest(raw) if key is not None else None
    if key is not None and not dry_run and (found := await find_claim(state, user, key, digest)):
        return found
    await state.limiter.take(CallKind.SUBMIT, Caller(user.id, user.is_anonymous, source))
    draft = Draft(raw, user)
    for check in SUBMIT_CHECKS:
        await check(state, draft)
    payload = _build_stored_payload(draft)
    if dry_run:
        return SubmitAnswer(200, {"kudos": to_kudos(draft.estimate)})
    if state.images is not None:
        await state.images.keep(draft.pictures)
    try:
        row = await state.pool.fetchrow(queries.SUBMIT_REQUEST, *_arguments(draft, payload, client_agent, key, digest))
    except asyncpg.UniqueViolationError:
        await _discard_images(state, draft)
        # Another copy of this operation, or its cancel, was committed since the claim was looked up.
        if key is not None and (found := await find_claim(state, user, key, digest)):
            return found
        raise
    if row is None:
        await _discard_images(state, draft)
        # The balance may be spent by an earlier copy of this very call, which came in between.
        if key is not None and (found := await find_claim(state, user, key, digest)):
            return found
        raise kudos_upfront(draft)
    state.metrics.kudos_held(0 if user.is_anonymous else draft.hold)
    await state.held_pops.announce(_needs(draft), state.publisher)
    return SubmitAnswer(202, {"id": str(row["id"]), "kudos": to_kudos(draft.estimate)})


async def _discard_images(state: NativeState, draft: Draft) -> None:
    if state.images is not None:
        await state.images.discard(draft.pictures)


def _may_hold_images(raw: Mapping[str, Any]) -> bool:
    """Say whether a body that was not validated yet has messages of several parts."""
    messages = raw.get("messages")
    return isinstance(messages, list) and any(
        isinstance(message, Mapping) and isinstance(message.get("content"), list) for message in messages
    )


async def find_claim(state: NativeState, user: User, key: UUID, digest: bytes | None) -> SubmitAnswer | None:
    """Return the answer for an operation key that was used before, or None.

    Raises:
        RefusalError: ``ChatOperationCancelled``, or ``ChatRequestConflict`` for another body under the same key.
    """
    claim = await state.pool.fetchrow(queries.FIND_CLAIM, user.id, key)
    if claim is None:
        return None
    if claim["request_id"] is None:
        raise RefusalError(ReturnCode.CHAT_OPERATION_CANCELLED)
    if claim["body_digest"] != digest:
        raise RefusalError(
            ReturnCode.CHAT_REQUEST_CONFLICT,
            "'operation_key' was used for another request. Use a new key for each request.",
        )
    return SubmitAnswer(200, {"id": str(claim["request_id"]), "kudos": to_kudos(claim["estimate"])})


def _operation_key(raw: Mapping[str, Any]) -> UUID | None:
    """Return the operation key of a body that was not validated yet; one of another shape is left to validation."""
    value = raw.get("operation_key")
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _body_digest(raw: Mapping[str, Any]) -> bytes:
    """Return what tells one operation from another: the body, whatever the order of its keys."""
    identity = {name: value for name, value in raw.items() if name not in _OUTSIDE_IDENTITY}
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).digest()


def _needs(draft: Draft) -> RequestNeeds:
    body, traits = draft.body, draft.requirements.traits
    return RequestNeeds(
        models=tuple(draft.models),
        needs=draft.requirements.declarations,
        needs_images=draft.image_count > 0,
        max_length=draft.max_length,
        max_context_length=draft.max_context_length,
        tools_temperature=traits.temperature if traits.forwards_tools else None,
        only_workers=None if body.workers.only is None else frozenset(body.workers.only),
        ignore_workers=frozenset(body.workers.ignore or ()),
        trusted_only=body.trusted_workers,
        fast_only=not body.slow_workers,
    )


def _build_stored_payload(draft: Draft) -> bytes:
    """Return the job's payload as it is stored.

    Raises:
        RefusalError: ``BadRequest``: no worker would read a job of that size.
    """
    payload = build_payload(
        draft.messages,
        narrowed=draft.narrowed,
        params=draft.params,
        max_length=draft.max_length,
        max_context_length=draft.max_context_length,
    )
    stored = orjson.dumps(payload)
    # A worker without the url transport receives the pictures as base64 in the job itself.
    if len(stored) + sum(len(picture) + 2 for picture in draft.pictures.values()) * 4 // 3 > _MAX_PAYLOAD_BYTES:
        raise RefusalError(
            ReturnCode.BAD_REQUEST, f"A job may take at most {_MAX_PAYLOAD_BYTES} bytes of JSON, and this takes more."
        )
    return stored


def _arguments(
    draft: Draft, payload: bytes, client_agent: str, key: UUID | None, digest: bytes | None
) -> tuple[Any, ...]:
    """Return the arguments of :data:`queries.SUBMIT_REQUEST`, in its order."""
    needs = _needs(draft)
    return (
        draft.user.id,
        list(needs.models),
        sorted(needs.needs),
        needs.needs_images,
        needs.max_length,
        needs.max_context_length,
        needs.tools_temperature,
        None if needs.only_workers is None else list(needs.only_workers),
        list(needs.ignore_workers),
        needs.trusted_only,
        needs.fast_only,
        draft.body.stream,
        draft.body.conformance == "strict",
        draft.image_count,
        draft.estimate,
        orjson.dumps(draft.adjustments) if draft.adjustments else None,
        client_agent[:_MAX_AGENT_LENGTH],
        float(CHAT_REQUEST_EXPIRY_SECONDS),
        payload,
        key,
        spendable_account(draft.user.id),
        held_account(draft.user.id),
        draft.hold,
        draft.user.is_anonymous,
        digest,
        list(draft.pictures),
    )
