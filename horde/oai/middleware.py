"""What every response of the front carries, as plain ASGI (rules CORS, decision U50)."""

import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BrowserAccess", "common_headers"]

_EXPOSED: Final = (
    b"retry-after, x-should-retry, x-request-id, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset"
)
_COMMON: Final = ((b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED))
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
    (b"access-control-max-age", b"86400"),
    (b"vary", b"access-control-request-headers"),
)
_MAX_HEADER_BYTES: Final = 4096


def common_headers() -> list[tuple[bytes, bytes]]:
    """Return what a response carries that no route gave an id of its own."""
    return [*_COMMON, (b"x-request-id", str(uuid.uuid4()).encode())]


class BrowserAccess:
    """Answers preflights, and lets any origin read every response; gives each one an ``x-request-id``.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                has_id = any(name == b"x-request-id" for name, _ in headers)
                headers.extend(_COMMON if has_id else common_headers())
                message = {**message, "headers": headers}
            await send(message)

        if scope["method"] == "OPTIONS":
            await self._answer_preflight(scope, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    @staticmethod
    async def _answer_preflight(scope: Scope, send: Send) -> None:
        """Allow whatever headers the browser asks to send: clients have their own (CORS-4)."""
        asked = next((value for name, value in scope["headers"] if name == b"access-control-request-headers"), b"")
        headers = [*_PREFLIGHT, (b"access-control-allow-headers", asked[:_MAX_HEADER_BYTES] or b"authorization")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
