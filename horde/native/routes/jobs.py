"""Routes of workers: pop, progress, submit."""

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from horde.native.http import caller, json_answer, read_json, state_of
from horde.native.queue.pop import pop_job
from horde.native.queue.progress import record_progress
from horde.native.queue.reply import submit_fault, submit_reply
from horde.native.wire import FaultBody, PopBody, ProgressBody, ReplyBody, parse_body

__all__ = ["pop", "progress", "submit"]

_MAX_POP_BYTES: Final = 1024 * 1024
_MAX_PROGRESS_BYTES: Final = 512 * 1024
"""A post's 64 KiB of text may be written with six bytes for each of its own."""
_MAX_SUBMIT_BYTES: Final = 8 * 1024 * 1024
"""A mebibyte of reply, likewise."""


async def pop(request: Request) -> Response:
    """``POST /api/v2/generate/text/pop``; held open for ``wait_seconds`` when no job fits."""
    user = await caller(request)
    body = parse_body(PopBody, await read_json(request, _MAX_POP_BYTES))
    state = state_of(request)
    gone = asyncio.Event()
    base_url = state.settings.public_url or str(request.base_url)
    if body.wait_seconds <= 0:
        return json_answer(await pop_job(state, user, body, gone, base_url))
    watcher = asyncio.create_task(_watch_client(request, gone), name="native - pop client watcher")
    try:
        return json_answer(await pop_job(state, user, body, gone, base_url))
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _watch_client(request: Request, gone: asyncio.Event) -> None:
    """Set ``gone`` when the client leaves; its body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def progress(request: Request) -> Response:
    """``POST /api/v2/generate/chat/progress``."""
    user = await caller(request)
    body = parse_body(ProgressBody, await read_json(request, _MAX_PROGRESS_BYTES))
    runs = await record_progress(state_of(request), user, body)
    return json_answer({"cancelled": not runs})


async def submit(request: Request) -> Response:
    """``POST /api/v2/generate/text/submit``; a reply, or a fault."""
    user = await caller(request)
    raw = await read_json(request, _MAX_SUBMIT_BYTES)
    if raw.get("state") == "faulted":
        reward = await submit_fault(state_of(request), user, parse_body(FaultBody, raw))
    else:
        reward = await submit_reply(state_of(request), user, parse_body(ReplyBody, raw))
    return json_answer({"reward": reward})
