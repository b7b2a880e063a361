"""Unknown paths, wrong methods, and defects, in the same envelope as every other error (decision U53)."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from horde.oai.answers import encode_error
from horde.oai.errors import ChatFrontError, FrontCode

__all__ = ["answer_routing_error", "internal_error", "unknown_url_error"]

_METHOD_NOT_ALLOWED: Final = 405
_SHOWN_PATH: Final = 256


def unknown_url_error(method: str, path: str) -> ChatFrontError:
    """Return the error of a path that names nothing.

    Args:
        method: The request's method.
        path: Its path.
    """
    return ChatFrontError(
        FrontCode.UNKNOWN_URL,
        f"Unknown request URL: {method} {path[:_SHOWN_PATH]}. The base URL of this service ends in /v1.",
    )


def internal_error() -> ChatFrontError:
    """Return the error of a request that met a defect of the front."""
    return ChatFrontError(FrontCode.INTERNAL, "The front failed on this request; its operator's log says why.")


async def answer_routing_error(request: Request, error: Exception) -> Response:
    """Answer a request that no route took."""
    method, path = request.method, request.url.path
    if isinstance(error, HTTPException) and error.status_code == _METHOD_NOT_ALLOWED:
        failure = ChatFrontError(
            FrontCode.METHOD_NOT_SUPPORTED,
            f"{method} is not allowed on {path[:_SHOWN_PATH]}; try another HTTP method.",
            headers=dict(error.headers or {}),
        )
    else:
        failure = unknown_url_error(method, path)
    body, headers = encode_error(failure)
    return Response(body, failure.status, headers)
