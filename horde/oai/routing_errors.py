"""What no route answers, in the same envelope as every other error (decision U53).

Unreadable requests, unknown paths, wrong methods, and defects.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from horde.oai.answers import encode_error
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.middleware import common_headers

__all__ = ["answer_routing_error", "encode_refusal", "internal_error", "unknown_url_error"]

_METHOD_NOT_ALLOWED: Final = 405
_SHOWN_PATH: Final = 256

_REFUSAL_CODES: Final[Mapping[HTTPStatus, FrontCode]] = {
    HTTPStatus.REQUEST_TIMEOUT: FrontCode.HEADERS_TIMEOUT,
    HTTPStatus.REQUEST_URI_TOO_LONG: FrontCode.URL_TOO_LONG,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: FrontCode.HEADERS_TOO_LARGE,
}


def encode_refusal(status: HTTPStatus, sentence: str) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
    """Return headers and envelope of a request that the server refuses before it has a route.

    Args:
        status: The refusal's status.
        sentence: What is wrong.
    """
    error = ChatFrontError(_REFUSAL_CODES.get(status, FrontCode.BAD_REQUEST), sentence)
    return common_headers(), orjson.dumps(error.envelope())


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
