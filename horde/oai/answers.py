"""Requests and responses at the ASGI boundary: headers in, JSON and streams out."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from starlette.types import Scope, Send

from horde.oai.errors import ChatFrontError

__all__ = [
    "STREAM_HEADERS",
    "ClientStalledError",
    "EventStream",
    "encode_error",
    "read_headers",
    "send_error",
    "send_json",
]

STREAM_HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-should-retry": "false",
}
"""Headers of every stream: nothing between us and the client may hold it back, and a job exists (STR-5)."""

_FORWARDED_FOR: Final = "x-forwarded-for"


class ClientStalledError(Exception):
    """The client has not read its answer for the write timeout."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers, names in lower case; of a name that stands twice the first counts.

    Only ``X-Forwarded-For`` is one list however many lines it came in: a proxy that adds a line of its own says who
    came to it in the last one, and the first may be the client's invention.

    Values are UTF-8 where they are, else Latin-1: titles come in both.
    """
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key not in headers:
            headers[key] = _decode(value)
        elif key == _FORWARDED_FOR:
            headers[key] += f", {_decode(value)}"
    return headers


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


async def send_json(
    send: Send, status: int, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> None:
    """Send a JSON response whole.

    Args:
        send: The ASGI channel.
        status: HTTP status.
        payload: The body.
        headers: Further headers, names in lower case.
    """
    body = orjson.dumps(payload)
    common = {"content-type": "application/json", "content-length": str(len(body))}
    await send({"type": "http.response.start", "status": status, "headers": _encode(common | dict(headers or {}))})
    await send({"type": "http.response.body", "body": body})


def encode_error(error: ChatFrontError) -> tuple[bytes, dict[str, str]]:
    """Return an error's body and headers."""
    return orjson.dumps(error.envelope()), {"content-type": "application/json", **error.response_headers()}


async def send_error(send: Send, error: ChatFrontError, headers: Mapping[str, str] | None = None) -> None:
    """Send an error as an HTTP response: envelope, status and retry guidance (ERR-1, RTY)."""
    await send_json(send, error.status, error.envelope(), error.response_headers() | dict(headers or {}))


class EventStream:
    """An open response of server-sent events.

    Args:
        send: The ASGI channel.
        write_timeout_seconds: Time a client may leave a part unread.
    """

    def __init__(self, send: Send, *, write_timeout_seconds: float) -> None:
        self._send = send
        self._write_timeout = write_timeout_seconds

    async def open(self, headers: Mapping[str, str]) -> None:
        """Send status 200 and the headers."""
        start = {"type": "http.response.start", "status": 200, "headers": _encode({**STREAM_HEADERS, **headers})}
        await self._write(start)
        # An empty part makes the server send the headers now and not with the first event.
        await self._write({"type": "http.response.body", "body": b"", "more_body": True})

    async def write(self, events: Iterable[bytes], *, last: bool = False) -> None:
        """Send events together.

        Args:
            events: Whole events as bytes.
            last: Whether the response ends with them.

        Raises:
            ClientStalledError: The client does not read.
        """
        await self._write({"type": "http.response.body", "body": b"".join(events), "more_body": not last})

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._send(message)
        except TimeoutError:
            raise ClientStalledError from None
