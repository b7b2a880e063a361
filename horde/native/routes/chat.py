"""Routes of whoever wants replies: submit, status, cancel (NAT-1)."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from horde.native.errors import ReturnCode
from horde.native.http import caller, client_source, counted_caller, json_answer, path_id, read_json, state_of
from horde.native.metrics import SubmitOutcome
from horde.native.queue.cancel import cancel_operation, cancel_request
from horde.native.queue.status import read_status
from horde.native.queue.submit import submit_request
from horde.native.rate_limits import CallKind

__all__ = ["cancel", "cancel_by_operation", "status", "submit"]


async def submit(request: Request) -> Response:
    """``POST /api/v2/generate/chat``."""
    user = await caller(request)
    body = await read_json(request)
    agent, source = request.headers.get("client-agent", ""), client_source(request)
    answer = await submit_request(state_of(request), user, body, agent, source=source)
    state_of(request).metrics.submitted(_outcome(body, answer.status))
    return json_answer(answer.body, answer.status)


def _outcome(body: Mapping[str, Any], status: int) -> SubmitOutcome:
    if body.get("dry_run") is True:
        return "dry_run"
    return "new" if status == HTTPStatus.ACCEPTED else "known"


async def status(request: Request) -> Response:
    """``GET /api/v2/generate/chat/status/{id}``."""
    user = await counted_caller(request, CallKind.READ)
    return json_answer(await read_status(state_of(request), user, path_id(request, ReturnCode.REQUEST_NOT_FOUND)))


async def cancel(request: Request) -> Response:
    """``DELETE /api/v2/generate/chat/status/{id}``."""
    user = await counted_caller(request, CallKind.CANCEL)
    return json_answer(await cancel_request(state_of(request), user, path_id(request, ReturnCode.REQUEST_NOT_FOUND)))


async def cancel_by_operation(request: Request) -> Response:
    """``DELETE /api/v2/generate/chat/operation/{id}``."""
    user = await counted_caller(request, CallKind.CANCEL)
    return json_answer(await cancel_operation(state_of(request), user, path_id(request, ReturnCode.REQUEST_NOT_FOUND)))
