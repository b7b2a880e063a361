"""The HTTP side of a model server: where it is, one bounded answer, one stream, and what its refusals mean."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from horde.worker.backends.base import (
    BackendError,
    BackendUnavailableError,
    PromptOverflowError,
    UnbuildableGrammarError,
)
from horde.worker.backends.event_stream import EventStreamError, EventStreamParser, LineStreamParser
from horde.worker.payloads import JSON_HEADERS, json_payload

__all__ = ["BackendLocation", "ModelServer", "create_backend_session", "positive"]

_CONNECT_SECONDS: Final = 5.0
_ROUTE_SECONDS: Final = 30.0
"""Longest answer of a route that generates nothing."""

_MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Bound of an answer that is no stream: a model list, a chat template, tokens of a prompt."""

_END_OF_STREAM: Final = b"[DONE]"

_NOT_SERVING: Final = frozenset({401, 403, 502, 503, 504})
"""A key that no longer opens, a server that loads its model, a proxy without a server behind it."""

_REFUSED_BODY: Final = frozenset({400, 413, 422})

_OVERFLOW_WORDS: Final = (b"exceed_context_size", b"context_length_exceeded", b"maximum context length")
"""How servers say that a prompt does not fit: llama.cpp, OpenAI and those like it, vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLocation:
    """Where a model server is and how it is asked.

    Attributes:
        base_url: Its OpenAI base URL, which usually ends in ``/v1``; no trailing slash.
        api_key: Bearer key, when it wants one; never shown.
        model: The model to ask for; None takes the first one listed.
        stall_seconds: Longest silence within a reply, the reading of the prompt included.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    stall_seconds: float = 120.0

    @property
    def root_url(self) -> str:
        """Address of the routes that a server has beside OpenAI's."""
        return self.base_url.removesuffix("/v1")


def create_backend_session(location: BackendLocation) -> aiohttp.ClientSession:
    """Return the HTTP session for one model server; whoever asks for it closes it.

    Every call has a connection of its own: one that is kept alive may be closed by the server in the moment it is
    used again, which would cost a job, and a new one costs a fraction of a millisecond. The number of connections
    follows the jobs, which are bounded.
    """
    headers = {"Authorization": f"Bearer {location.api_key}"} if location.api_key else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=location.stall_seconds),
    )


def positive(value: object) -> int | None:
    """Return a positive integer, or None for anything else that a server may answer."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class ModelServer:
    """Calls to one model server. Redirects are never followed: the operator said where it is.

    Args:
        session: From :func:`create_backend_session`; not closed here.
        location: Where it is.
    """

    def __init__(self, session: aiohttp.ClientSession, location: BackendLocation) -> None:
        self._session = session
        self.location = location

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a route beside OpenAI's that generates nothing, and return the object it answers with.

        Args:
            path: From the server's root.
            body: Posted as JSON; a GET without one.

        Raises:
            UnbuildableGrammarError: The body asks for a format and was refused.
            BackendUnavailableError: No answer, or one of a server that cannot work.
            BackendError: Any other answer than 200 with an object.
        """
        return await self._call(self.location.root_url + path, body)

    async def call_api(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a route under OpenAI's base URL; otherwise as :meth:`call`."""
        return await self._call(self.location.base_url + path, body)

    async def _call(self, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=_ROUTE_SECONDS, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session.request(
                "GET" if body is None else "POST",
                url,
                data=None if body is None else json_payload(body),
                headers=JSON_HEADERS,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await _read_bounded(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        if response.status != 200:  # noqa: PLR2004 - the one status that answers
            if response.status in _NOT_SERVING:
                raise BackendUnavailableError(f"{url} does not serve at present (HTTP {response.status}).")
            if response.status in _REFUSED_BODY and body is not None and "response_format" in body:
                raise UnbuildableGrammarError(f"The model server refused the format (HTTP {response.status}).")
            raise BackendError(f"{url} answered with HTTP {response.status}.")
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise BackendError(f"{url} did not answer with JSON.") from error
        if not isinstance(answer, dict):
            raise BackendError(f"{url} did not answer with an object.")
        return answer

    async def stream_events(self, body: Mapping[str, Any], *, constrained: bool) -> AsyncGenerator[bytes]:
        """Start a chat completion and yield the data of its server-sent events, up to ``[DONE]``.

        The connection is closed however this is left.

        Args:
            body: The request.
            constrained: It asks for a format or for tools, so that a refusal is about those.

        Raises:
            BackendError: Refused, cut, silent, or too large.
        """
        url = self.location.base_url + "/chat/completions"
        async with aclosing(self._stream(url, body, EventStreamParser(), constrained=constrained)) as events:
            async for data in events:
                if data.strip() == _END_OF_STREAM:
                    return
                yield data

    async def stream_lines(self, path: str, body: Mapping[str, Any], *, constrained: bool) -> AsyncGenerator[bytes]:
        """Start a reply that comes as one JSON object a line, and yield the lines; else as :meth:`stream_events`."""
        url = self.location.root_url + path
        async with aclosing(self._stream(url, body, LineStreamParser(), constrained=constrained)) as lines:
            async for line in lines:
                yield line

    async def _stream(
        self,
        url: str,
        body: Mapping[str, Any],
        parser: EventStreamParser | LineStreamParser,
        *,
        constrained: bool,
    ) -> AsyncGenerator[bytes]:
        try:
            async with self._session.post(
                url, data=json_payload(body), headers=JSON_HEADERS, allow_redirects=False
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - the one status that answers
                    raise _refusal(response.status, await _read_bounded(response), constrained=constrained)
                async with aclosing(_read_pieces(response, parser)) as pieces:
                    async for data in pieces:
                        yield data
        except aiohttp.ConnectionTimeoutError as error:
            raise self._unreachable(error) from error
        except TimeoutError as error:
            raise BackendError(f"The model server was silent for {self.location.stall_seconds:.0f} seconds.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        except EventStreamError as error:
            raise BackendError(str(error)) from error

    def _unreachable(self, error: Exception) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"The model server at {self.location.base_url} cannot be reached ({type(error).__name__})."
        )


async def _read_pieces(
    response: aiohttp.ClientResponse, parser: EventStreamParser | LineStreamParser
) -> AsyncGenerator[bytes]:
    """Yield whole pieces of an answer as they arrive, and close the connection."""
    try:
        async for chunk in response.content.iter_any():
            for data in parser.feed(chunk):
                yield data
    finally:
        response.close()


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _MAX_ANSWER_BYTES:
            response.close()
            raise BackendError("The model server answered with more than 8 MiB.")
    return bytes(data)


def _refusal(status: int, data: bytes, *, constrained: bool) -> BackendError:
    """Turn an error answer into ours; its text is read and never repeated, since it may quote the prompt."""
    if status in _REFUSED_BODY:
        if any(word in data for word in _OVERFLOW_WORDS):
            return PromptOverflowError("The model server refused the prompt as too long.")
        if constrained:
            return UnbuildableGrammarError(f"The model server refused the format or the tools (HTTP {status}).")
    if status == 404 or status in _NOT_SERVING:  # noqa: PLR2004 - the model is gone
        return BackendUnavailableError(f"The model server does not serve at present (HTTP {status}).")
    return BackendError(f"The model server answered with HTTP {status}.")
