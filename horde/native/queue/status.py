"""Statuses: one read, no lock, no write (NAT-3, NAT-4, NAT-6, NAT-12)."""

from typing import Any
from uuid import UUID

import orjson

from horde.native.db import reads
from horde.native.eligibility import Fields, RequestNeeds, WorkerFacts, service_gap
from horde.native.errors import RefusalError, ReturnCode
from horde.native.kudos import to_kudos
from horde.native.lifecycle import OPEN_STATES, RequestState
from horde.native.queue.settlement import Executor
from horde.native.state import NativeState
from horde.native.users import User

__all__ = ["read_status"]

_WITH_FAULT = frozenset({RequestState.FAULTED, RequestState.EXPIRED})


async def read_status(
    state: NativeState, user: User, request_id: UUID, *, executor: Executor | None = None
) -> dict[str, Any]:
    """Return a request's status as the contract has it.

    Args:
        state: The process's parts.
        user: Who asks; only the submitter is answered.
        request_id: The request.
        executor: A connection within a transaction whose changes the status shows; the pool when left out.

    Raises:
        RefusalError: ``RequestNotFound``.
    """
    row = await (executor or state.pool).fetchrow(
        reads.READ_STATUS, request_id, user.id, state.settings.slow_worker_tokens_per_second
    )
    if row is None:
        raise RefusalError(ReturnCode.REQUEST_NOT_FOUND)
    return _describe(state, row)


def _describe(state: NativeState, row: Fields) -> dict[str, Any]:
    now = RequestState(row["state"])
    waits = now is RequestState.WAITING
    runs = now is RequestState.PROCESSING
    view = state.queue.view
    return {
        "done": now not in OPEN_STATES,
        "faulted": now in _WITH_FAULT,
        "is_possible": runs or row["eligible_workers"] > 0,
        "waiting": int(waits),
        "processing": int(runs),
        "finished": int(now is RequestState.REPLIED),
        "restarted": row["restarted"],
        "queue_position": view.position(row["id"]) if waits else 0,
        "wait_time": view.wait_seconds(row["id"]) if waits else 0,
        "kudos": to_kudos(row["estimate"] if now in OPEN_STATES else row["charged"]),
        "eligible_workers": row["eligible_workers"],
        "eligible_worker_threads": row["eligible_threads"],
        "impossible_reason": _impossible_reason(row),
        "context_adjustments": orjson.loads(row["adjustments"]) if row["adjustments"] else None,
        "fault": {"rc": row["fault_rc"], "message": row["fault_message"]} if now in _WITH_FAULT else None,
        "generations": [_generation(row)] if now is RequestState.REPLIED else [],
    }


def _impossible_reason(row: Fields) -> dict[str, Any] | None:
    if row["gap_workers"] is None:
        return None
    workers = [
        WorkerFacts(
            id=UUID(fields["id"]),
            model_id=fields["model_id"],
            features=frozenset(fields["features"]),
            image_transports=frozenset(fields["image_transports"]),
            max_length=fields["max_length"],
            max_context_length=fields["max_context_length"],
            tools_max_temperature=fields["tools_max_temperature"],
            trusted=fields["trusted"],
            fast=fields["fast"],
        )
        for fields in orjson.loads(row["gap_workers"])
    ]
    gap = service_gap(workers, RequestNeeds.from_row(row, row["models"]))
    if gap is None:
        return None
    return {
        "kind": gap.kind.value,
        "missing_declarations": list(gap.missing_declarations),
        "exceeded_limits": list(gap.exceeded_limits),
    }


def _generation(row: Fields) -> dict[str, Any]:
    return {
        "id": str(row["job_id"]),
        "message": orjson.loads(row["message"]),
        "finish_reason": row["finish_reason"],
        "native_finish_reason": row["native_finish_reason"],
        "model": row["served_model"],
        "worker_id": str(row["worker_id"]),
        "worker_name": row["worker_name"],
        "kudos": to_kudos(row["charged"]),
        "queue_wait_seconds": round(row["queue_wait"], 3),
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "reasoning_tokens": row["reasoning_tokens"],
    }
