"""The model list (MDL-16)."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from horde.native.db import reads
from horde.native.eligibility import Fields
from horde.native.errors import ValidationFailedError
from horde.native.http import count_public_read, json_answer, state_of
from horde.native.state import NativeState

__all__ = ["list_models"]


async def list_models(request: Request) -> Response:
    """``GET /api/v2/status/models?type=text``: every known model, with what its online chat workers declare."""
    kind = request.query_params.get("type", "text")
    if kind not in {"text", "image"}:
        raise ValidationFailedError({"type": "Supported values are: 'text', 'image'."})
    await count_public_read(request)
    state = state_of(request)
    rows = await state.pool.fetch(reads.LIST_MODELS) if kind == "text" else []
    return json_answer([_entry(state, row) for row in rows])


def _entry(state: NativeState, row: Fields) -> dict[str, Any]:
    load = state.queue.view.load(row["name"])
    speed = row["speed"] or load.speed
    return {
        "name": row["name"],
        "type": "text",
        "count": row["workers"],
        "jobs": load.queued,
        "queued": load.queued_tokens,
        "eta": round(load.queued_tokens / (speed * max(1, row["threads"]))),
        "performance": round(speed, 1),
        "chat": _chat(row),
    }


def _chat(row: Fields) -> dict[str, Any] | None:
    if not row["workers"]:
        return None
    return {
        "workers": row["workers"],
        "threads": row["threads"],
        "max_context_length": row["max_context_length"],
        "max_length": row["max_length"],
        "features": list(row["features"]),
    }
