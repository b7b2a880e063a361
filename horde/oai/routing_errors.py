"""Unknown paths and methods, in the same envelope as every other error (decision U53)."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from horde.oai.answers import encode_error
from horde.oai.errors import ChatFrontError, FrontCode

__all__ = ["answer_routing_error"]

_METHOD_NOT_ALLOWED: Final = 405


async def answer_routing_error(request: Request, error: Exception) -> Response:
    """Answer a request that no route took."""
    method, path = request.method, request.url.path[:256]
    if isinstance(error, HTTPException) and error.status_code == _METHOD_NOT_ALLOWED:
        failure = ChatFrontError(
            FrontCode.METHOD_NOT_SUPPORTED,
            f"{method} is not allowed on {path}; try another HTTP method.",
            headers=dict(error.headers or {}),
        )
    else:
        failure = ChatFrontError(
            FrontCode.UNKNOWN_URL, f"Unknown request URL: {method} {path}. The base URL of this service ends in /v1."
        )
    body, headers = encode_error(failure)
    return Response(body, failure.status, headers)
