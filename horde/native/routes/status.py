"""Whether the Horde is alive and can serve (decision U32), and how it does."""

import asyncio
from typing import Final

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response

from horde.native.db.engine import DATABASE_ERRORS
from horde.native.http import count_public_read, json_answer, state_of
from horde.native.state import NativeState

__all__ = ["health", "heartbeat", "performance", "ready"]

_PROBE_SECONDS: Final = 2.0


async def health(_request: Request) -> Response:
    """``GET /healthz``: the process is alive, also while it drains."""
    return json_answer({"status": "ok"})


async def heartbeat(_request: Request) -> Response:
    """``GET /api/v2/status/heartbeat``."""
    return json_answer({"message": "OK"})


async def ready(request: Request) -> Response:
    """``GET /readyz``: 200 when calls can be served, also without Redis; 503 while draining or without a database."""
    state = state_of(request)
    if state.stopping.is_set():
        return json_answer({"status": "draining"}, 503)
    if not await _database_answers(state):
        return json_answer({"status": "unavailable", "failing": ["database"]}, 503)
    if not await _redis_answers(state):
        return json_answer({"status": "degraded", "failing": ["redis"]})
    return json_answer({"status": "ok"})


async def _database_answers(state: NativeState) -> bool:
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await state.pool.execute("SELECT 1")
    except DATABASE_ERRORS:
        return False
    return True


async def _redis_answers(state: NativeState) -> bool:
    if state.redis is None:
        return True
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await state.redis.ping()
    except (RedisError, OSError, TimeoutError):
        return False
    return True


async def performance(request: Request) -> Response:
    """``GET /api/v2/status/performance``: the queue of all models together, from the last snapshot."""
    await count_public_read(request)
    view = state_of(request).queue.view
    loads = list(view.loads.values())
    return json_answer(
        {
            "queued_text_requests": len(view.waiting),
            "queued_tokens": sum(load.queued_tokens for load in loads),
            "processing_text_requests": sum(load.running for load in loads),
            "text_thread_count": sum(load.threads for load in loads),
            "tokens_per_second": round(sum(load.threads * load.speed for load in loads), 1),
        },
    )
