"""Reading a request body: bounded in size, time and memory, strict JSON (ADM-4, ADM-5, REQ-1, REQ-2)."""

import asyncio
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import orjson
from starlette.types import Receive

from horde.chat_contract import exceeds_depth
from horde.oai.errors import ChatFrontError, FrontCode

__all__ = ["BodyReader", "ClientLeftError", "parse_json_object"]

_MAX_DEPTH: Final = 64
"""Levels of nesting; a schema within its own bound needs 30."""

_MAX_VALUES: Final = 2**16
"""Members and items of all objects and arrays together. A conversation within its 1 MiB of text has a few thousand;
16 MiB of tiny ones would keep the process from every other request for seconds."""

_MAX_COMMAS: Final = 2**21
"""Above this no body is valid: values have a comma each, and texts and tool specs take 1.25 MiB at most. Counted before
parsing, which for millions of values would hold the loop for seconds."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_CLOSE: Final = {"connection": "close"}
"""The rest of the body stays unread, so the connection cannot serve another request."""


class ClientLeftError(Exception):
    """The client closed the connection before its request was whole."""


class BodyReader:
    """Reads bodies of one process.

    Args:
        max_bytes: Largest body, as sent and decompressed.
        max_bytes_reading: All bodies being read at once.
        timeout_seconds: Time for one body.
        on_received: Told the size of each body received whole (MET-13).
    """

    def __init__(
        self, *, max_bytes: int, max_bytes_reading: int, timeout_seconds: float, on_received: Callable[[int], None]
    ) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_reading = max_bytes_reading
        self._timeout = timeout_seconds
        self._on_received = on_received
        self._reading = 0

    def check_declared_size(self, headers: Mapping[str, str]) -> None:
        """Refuse a body by its ``Content-Length``, before any of it is read.

        Raises:
            ChatFrontError: ``RequestTooLarge``.
        """
        declared = headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > self._max_bytes):  # noqa: PLR2004 - 64 bits
            raise self._too_large()

    async def read(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """Return the body, decompressed.

        Args:
            receive: The ASGI channel.
            headers: The request's headers, names in lower case.

        Raises:
            ChatFrontError: Too large, too slow, an unknown encoding, or too much being read at once.
            ClientLeftError: The client left.
        """
        encoding = headers.get("content-encoding", "identity").strip().lower() or "identity"
        if encoding not in {"identity", "gzip"}:
            raise ChatFrontError(
                FrontCode.UNSUPPORTED_ENCODING,
                "Content-Encoding has to be gzip, or left out.",
                headers=_CLOSE | {"accept-encoding": "gzip"},
            )
        try:
            async with asyncio.timeout(self._timeout):
                data = await self._receive_all(receive)
        except TimeoutError:
            raise ChatFrontError(
                FrontCode.BODY_TIMEOUT,
                f"The request body was not received within {self._timeout:g} seconds.",
                headers=_CLOSE,
            ) from None
        if encoding == "gzip":
            data = self._decompress(data)
        self._on_received(len(data))
        return data

    async def _receive_all(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        with self._counting() as count:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError
                if part := message.get("body", b""):
                    parts.append(part)
                    if count(len(part)) > self._max_bytes:
                        raise self._too_large()
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextmanager
    def _counting(self) -> Generator[Callable[[int], int]]:
        """Count one body's bytes against the process's bound for as long as it is being read."""
        size = 0

        def count(more: int) -> int:
            nonlocal size
            if self._reading + more > self._max_bytes_reading:
                raise ChatFrontError(
                    FrontCode.AT_CAPACITY, "This front is receiving too much at once; retry shortly.", headers=_CLOSE
                )
            self._reading += more
            size += more
            return size

        try:
            yield count
        finally:
            self._reading -= size

    def _decompress(self, data: bytes) -> bytes:
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        try:
            plain = inflater.decompress(data, self._max_bytes + 1)
        except zlib.error:
            raise _bad_gzip() from None
        if len(plain) > self._max_bytes:
            raise self._too_large()
        if not inflater.eof or inflater.unused_data:
            raise _bad_gzip()
        return plain

    def _too_large(self) -> ChatFrontError:
        return ChatFrontError(
            FrontCode.TOO_LARGE, f"The request body is over the limit of {self._max_bytes} bytes.", headers=_CLOSE
        )


def _bad_gzip() -> ChatFrontError:
    return ChatFrontError(FrontCode.BAD_REQUEST, "The request body is not one whole gzip stream.")


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Return a body as a JSON object.

    NaN, infinities, numbers that overflow to them, lone surrogates and trailing bytes are refused by the parser; of a
    key that stands twice the last one counts, as at OpenAI.

    Args:
        data: The body, UTF-8 with or without a byte order mark.

    Raises:
        ChatFrontError: ``BadRequest`` with ``param`` null.
    """
    if len(data) > _MAX_COMMAS and data.count(b",") > _MAX_COMMAS:
        raise ChatFrontError(FrontCode.BAD_REQUEST, f"The request body holds more than {_MAX_VALUES} values.")
    try:
        value = orjson.loads(data.removeprefix(_BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        raise ChatFrontError(
            FrontCode.BAD_REQUEST,
            f"The request body could not be parsed as JSON: {error.msg[:200]} (at character {error.pos}).",
        ) from None
    if not isinstance(value, dict):
        raise ChatFrontError(FrontCode.BAD_REQUEST, "The request body has to be a JSON object.")
    if exceeds_depth(value, _MAX_DEPTH, values=_MAX_VALUES):
        raise ChatFrontError(
            FrontCode.BAD_REQUEST,
            f"The request body nests more than {_MAX_DEPTH} levels deep or holds more than {_MAX_VALUES} values.",
        )
    return value
