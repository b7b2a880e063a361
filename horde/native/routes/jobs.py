"""Routes of workers: pop, progress, submit."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from horde.native.errors import RefusalError, ReturnCode
from horde.native.http import call_of, caller, json_answer, read_json, state_of
from horde.native.queue.pop import PopAnswer, pop_job
from horde.native.queue.progress import record_progress
from horde.native.queue.reply import submit_fault, submit_reply
from horde.native.rate_limits import CallKind
from horde.native.state import NativeState
from horde.native.users import User
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
    counted, limiter = call_of(request, user), state_of(request).limiter
    await limiter.take(CallKind.POP, counted, body.name)
    answer = await _pop(request, user, body)
    if answer.brings_job:
        await limiter.give_back(CallKind.POP, counted, body.name)
    return json_answer(answer.body)


async def _pop(request: Request, user: User, body: PopBody) -> PopAnswer:
    state, gone = state_of(request), asyncio.Event()
    base_url = state.settings.public_url or str(request.base_url)
    if body.wait_seconds <= 0:
        return await pop_job(state, user, body, gone, base_url)
    watcher = asyncio.create_task(_watch_client(request, gone), name="native - pop client watcher")
    try:
        return await pop_job(state, user, body, gone, base_url)
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
    counted, limiter = call_of(request, user), state_of(request).limiter
    await limiter.take(CallKind.POST, counted)
    runs = await record_progress(state_of(request), user, body)
    if runs:
        await limiter.give_back(CallKind.POST, counted)
    return json_answer({"cancelled": not runs})


async def submit(request: Request) -> Response:
    """``POST /api/v2/generate/text/submit``; a reply, or a fault."""
    user = await caller(request)
    raw = await read_json(request, _MAX_SUBMIT_BYTES)
    counted, limiter = call_of(request, user), state_of(request).limiter
    await limiter.take(CallKind.POST, counted)
    try:
        reward = await _submit(state_of(request), user, raw)
    except RefusalError as error:
        if error.code is ReturnCode.CHAT_SUBMIT_NONCONFORMANT:
            await limiter.give_back(CallKind.POST, counted)
        raise
    await limiter.give_back(CallKind.POST, counted)
    return json_answer({"reward": reward})


async def _submit(state: NativeState, user: User, raw: Mapping[str, Any]) -> float:
    if raw.get("state") == "faulted":
        return await submit_fault(state, user, parse_body(FaultBody, raw))
    return await submit_reply(state, user, parse_body(ReplyBody, raw))
