"""Reading bodies and writing answers: JSON both ways, with the Horde's errors (NAT-2)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import UUID

import orjson
from loguru import logger
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from horde.chat_contract import exceeds_depth
from horde.native.db.engine import DATABASE_ERRORS
from horde.native.errors import NativeError, OutcomeUnknownError, RefusalError, ReturnCode
from horde.native.ledger import ANONYMOUS_USER_ID
from horde.native.rate_limits import Caller, CallKind
from horde.native.state import NativeState
from horde.native.users import User

__all__ = [
    "EXCEPTION_HANDLERS",
    "call_of",
    "caller",
    "client_source",
    "count_public_read",
    "counted_caller",
    "json_answer",
    "path_id",
    "read_json",
    "state_of",
]

_JSON_HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_METHOD_NOT_ALLOWED: Final = 405
_SERVER_ERROR: Final = 500

_MAX_DEPTH: Final = 66
"""Levels of nesting in a body; a front, whose own bound is 64, adds up to two around what its client sent."""

_QUICK_BYTES: Final = 1024 * 1024
"""A larger body is decoded and measured in a thread, so that the loop gets its turns in between."""

_MAX_VALUES: Final = 2**17
"""JSON values in a body; twice a front's bound, since it adds keys of its own."""


def state_of(request: Request) -> NativeState:
    """Return the process's parts, which the lifespan put into the request's state."""
    state: NativeState = request.state.native
    return state


def client_source(request: Request) -> str:
    """Return what the client's address counts as; a trusted front names its own client's."""
    peer = request.client.host if request.client else None
    addresses = state_of(request).addresses
    return addresses.source(addresses.read(peer, ",".join(request.headers.getlist("x-forwarded-for"))))


async def caller(request: Request) -> User:
    """Return whose key the request carries.

    Raises:
        RefusalError: ``InvalidAPIKey``.
    """
    return await state_of(request).users.authenticate(request.headers.get("apikey"))


async def counted_caller(request: Request, kind: CallKind) -> User:
    """Return whose key the request carries, its call counted.

    Raises:
        RefusalError: ``InvalidAPIKey``, or ``TooManyPrompts``.
    """
    user = await caller(request)
    await state_of(request).limiter.take(kind, call_of(request, user))
    return user


async def count_public_read(request: Request) -> None:
    """Count a read that needs no key, for the client's address.

    Raises:
        RefusalError: ``TooManyPrompts``.
    """
    await state_of(request).limiter.take(
        CallKind.READ, Caller(ANONYMOUS_USER_ID, anonymous=True, source=client_source(request))
    )


def call_of(request: Request, user: User) -> Caller:
    """Return whom a call counts for."""
    return Caller(user.id, user.is_anonymous, client_source(request) if user.is_anonymous else "")


async def read_json(request: Request, limit: int | None = None) -> dict[str, Any]:
    """Return a request's body, a JSON object.

    Args:
        request: The request.
        limit: Bytes that a body of this route may take, where that is less than the setting for all.

    Raises:
        RefusalError: It is too large, too slow, not JSON (NaN, overflows and lone surrogates included) or no object.
    """
    settings = state_of(request).settings
    try:
        async with asyncio.timeout(settings.body_read_timeout_seconds):
            data = await _read_body(request, min(settings.max_body_bytes, limit or settings.max_body_bytes))
    except TimeoutError:
        raise RefusalError(ReturnCode.BODY_READ_TIMEOUT, headers={"Connection": "close"}) from None
    return await asyncio.to_thread(_decode, data) if len(data) > _QUICK_BYTES else _decode(data)


def _decode(data: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise RefusalError(ReturnCode.BAD_REQUEST, "The body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise RefusalError(ReturnCode.BAD_REQUEST, "The body has to be a JSON object.")
    if exceeds_depth(body, _MAX_DEPTH, values=_MAX_VALUES):
        raise RefusalError(
            ReturnCode.BAD_REQUEST,
            f"The body nests more than {_MAX_DEPTH} levels deep or holds more than {_MAX_VALUES} values.",
        )
    return body


async def _read_body(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise RefusalError(ReturnCode.REQUEST_TOO_LARGE, headers={"Connection": "close"})
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RefusalError(ReturnCode.REQUEST_TOO_LARGE, headers={"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


def path_id(request: Request, missing: ReturnCode) -> UUID:
    """Return the id in a request's path.

    Args:
        request: The request; the parameter is called ``id``.
        missing: What an id that is none is refused with: nothing has it.

    Raises:
        RefusalError: It is not an id.
    """
    try:
        return UUID(request.path_params["id"])
    except ValueError:
        raise RefusalError(missing) from None


def json_answer(body: bytes | Mapping[str, Any] | list[Any], status: int = 200) -> Response:
    """Return an answer; bytes are JSON already."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return Response(content, status, _JSON_HEADERS)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, NativeError)  # noqa: S101 - Starlette hands over what the table below names
    if isinstance(error, RefusalError):
        state_of(request).metrics.refused(error.code)
    return Response(orjson.dumps(error.body()), error.status, {**_JSON_HEADERS, **error.headers})


async def _answer_database_error(request: Request, error: Exception) -> Response:
    """Answer that nothing is known: the statement may have been committed before its answer was lost."""
    logger.error("The database failed a call to {}: {}", request.url.path, type(error).__name__)
    return await _answer_error(request, OutcomeUnknownError())


async def _answer_http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", _SERVER_ERROR)
    if status == _METHOD_NOT_ALLOWED:
        return await _answer_error(
            request, RefusalError(ReturnCode.METHOD_NOT_ALLOWED, headers={"Allow": _allowed_methods(request)})
        )
    codes = {404: ReturnCode.NOT_FOUND, 413: ReturnCode.REQUEST_TOO_LARGE}
    code = codes.get(status, ReturnCode.BAD_REQUEST)
    return await _answer_error(request, RefusalError(code, headers=getattr(error, "headers", None)))


def _allowed_methods(request: Request) -> str:
    """Return the methods of a path: of all its routes, where the framework names those of the first."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route.methods or () for route in routes if route.path_regex.match(request.url.path)]
    return ", ".join(sorted({method for methods in matching for method in methods}))


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client left while it sent its body; nobody reads this answer."""
    return Response(status_code=400)


async def _answer_crash(_request: Request, _error: Exception) -> Response:
    """Answer a mistake of the Horde's own, which the server logs; without a code, so that it claims nothing."""
    return Response(orjson.dumps({"message": "The Horde failed on this call."}), _SERVER_ERROR, _JSON_HEADERS)


EXCEPTION_HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]] = {
    NativeError: _answer_error,
    HTTPException: _answer_http_error,
    ClientDisconnect: _answer_nobody,
    **dict.fromkeys(DATABASE_ERRORS, _answer_database_error),
    Exception: _answer_crash,
}
"""What each kind of error is answered with."""
