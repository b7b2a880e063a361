"""Fetching a picture from a URL that a client wrote, without being made to reach anything inside (IMG-4, IMG-5).

The rule is kept where it cannot be got round: at the making of each socket, for the very address that is connected to.
A name is resolved once for each connection and no answer is kept or asked for again, so that a name which changes its
address (DNS rebinding) changes nothing; an address written in a URL and the target of a redirect meet the same rule.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Final, Self
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver

from horde.native.images.addresses import Network, may_connect
from horde.native.images.pictures import MAX_IMAGE_BYTES
from horde.native.images.resolver import SystemResolver

__all__ = ["STEP_SECONDS", "FetchError", "ImageFetcher"]

_MAX_REDIRECTS: Final = 3
STEP_SECONDS: Final = 2.0
"""Longest time of a connection and of a wait for more bytes (IMG-4)."""

_MAX_URL_LENGTH: Final = 8192
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_OK: Final = 200
_HEADERS: Final = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "horde-native"}


class FetchError(Exception):
    """The picture could not be fetched; the message ends a sentence and tells nothing of what is inside."""


class _ForbiddenAddressError(OSError):
    """A connection that may not be made."""


class ImageFetcher:
    """Fetches pictures; an async context manager.

    Args:
        allowed: Networks that may be fetched from although they are not public.
        parallel: Pictures fetched at a time by this process.
        step_seconds: Longest time of a connection, its name's resolution included, and of a wait for more bytes.
        resolver: Resolves names, and is closed with the fetcher; the system's unless a test replaces it.
    """

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        *,
        parallel: int = 32,
        step_seconds: float = STEP_SECONDS,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._allowed = tuple(allowed)
        self._resolver = resolver or SystemResolver(parallel)
        self._step_seconds = step_seconds
        self._slots = asyncio.Semaphore(parallel)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Make the HTTP client, which has no proxy, no cookies, and no connection that is used again."""
        step = self._step_seconds
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            use_dns_cache=False,
            force_close=True,
            limit=0,
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(connect=step, sock_connect=step, sock_read=step),
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close it."""
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def _open_socket(self, address: Any) -> socket.socket:  # noqa: ANN401 - getaddrinfo's five-tuple
        family, kind, protocol, _, destination = address
        if not may_connect(str(destination[0]), int(destination[1]), self._allowed):
            raise _ForbiddenAddressError
        return socket.socket(family, kind, protocol)

    async def fetch(self, url: str) -> bytes:
        """Return what is at a URL, following at most three redirects; at most 10 MiB are read.

        Raises:
            FetchError: It cannot be fetched within the limits.
        """
        async with self._slots:
            try:
                return await self._follow(url)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                # One sentence for all of them: which it was would tell a client what there is inside.
                raise FetchError("could not be fetched from a public address in time") from None

    async def _follow(self, url: str) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            answer = await self._read(url)
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer)
        raise FetchError(f"is behind more than {_MAX_REDIRECTS} redirects")

    async def _read(self, url: str) -> bytes | str:
        """Return the body of a URL, or where it redirects to."""
        if self._session is None or len(url) > _MAX_URL_LENGTH or not url.lower().startswith(("http://", "https://")):
            raise FetchError("has an address that is not fetched")
        async with self._session.get(url, allow_redirects=False, headers=_HEADERS) as answer:
            if answer.status in _REDIRECTS and (location := answer.headers.get("Location")):
                return location
            if answer.status != _OK:
                raise FetchError(f"is answered with the status {answer.status}")
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise FetchError("is sent with a content encoding that was not asked for")
            return await _read_bounded(answer)


async def _read_bounded(answer: aiohttp.ClientResponse) -> bytes:
    if (answer.content_length or 0) > MAX_IMAGE_BYTES:
        raise FetchError(f"has more than {MAX_IMAGE_BYTES} bytes")
    data = bytearray()
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > MAX_IMAGE_BYTES:
            raise FetchError(f"has more than {MAX_IMAGE_BYTES} bytes")
    return bytes(data)
