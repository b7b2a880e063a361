"""Workers: who is there, and maintenance, by which an owner withdraws one."""

from typing import Any, Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from horde.native.db import reads
from horde.native.eligibility import Fields
from horde.native.errors import RefusalError, ReturnCode
from horde.native.http import count_public_read, counted_caller, json_answer, path_id, read_json, state_of
from horde.native.rate_limits import CallKind
from horde.native.state import NativeState
from horde.native.wire import MaintenanceBody, parse_body

__all__ = ["change_worker", "list_workers", "show_worker"]

_MAX_BODY_BYTES: Final = 64 * 1024


async def list_workers(request: Request) -> Response:
    """``GET /api/v2/workers``."""
    await count_public_read(request)
    rows = await state_of(request).pool.fetch(reads.LIST_WORKERS, None)
    return json_answer([_entry(row) for row in rows])


async def show_worker(request: Request) -> Response:
    """``GET /api/v2/workers/{id}``."""
    await count_public_read(request)
    return json_answer(await _read(state_of(request), path_id(request, ReturnCode.WORKER_NOT_FOUND)))


async def change_worker(request: Request) -> Response:
    """``PUT /api/v2/workers/{id}``: maintenance, by the worker's owner or a moderator."""
    user = await counted_caller(request, CallKind.CANCEL)
    worker_id = path_id(request, ReturnCode.WORKER_NOT_FOUND)
    body = parse_body(MaintenanceBody, await read_json(request, _MAX_BODY_BYTES))
    pool = state_of(request).pool
    owner = await pool.fetchval(reads.WORKER_OWNER, worker_id)
    if owner is None:
        raise RefusalError(ReturnCode.WORKER_NOT_FOUND)
    if owner != user.id and not user.moderator:
        raise RefusalError(ReturnCode.NOT_OWNER, "This worker belongs to another user.")
    await pool.execute(reads.SET_MAINTENANCE, worker_id, body.maintenance, body.message if body.maintenance else None)
    return json_answer(await _read(state_of(request), worker_id))


async def _read(state: NativeState, worker_id: UUID) -> dict[str, Any]:
    row = await state.pool.fetchrow(reads.LIST_WORKERS, worker_id)
    if row is None:
        raise RefusalError(ReturnCode.WORKER_NOT_FOUND)
    return _entry(row)


def _entry(row: Fields) -> dict[str, Any]:
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "type": "text",
        "online": row["online"],
        "maintenance_mode": row["maintenance"],
        "maintenance_message": row["maintenance_message"],
        "trusted": row["trusted"],
        "owner": row["owner"],
        "models": [row["model_id"]] if row["model_id"] else [],
        "threads": row["threads"],
        "features": list(row["features"]),
        "max_length": row["max_length"],
        "max_context_length": row["max_context_length"],
        "bridge_agent": row["bridge_agent"],
        "tokens_per_second": row["tokens_per_second"],
    }
