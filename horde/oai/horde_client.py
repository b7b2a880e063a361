"""The native HTTP client: one method per native call, root rotation, bounded connections and answers (SUB-10, SUB-11).

An answer is data whatever its status; only the absence of one is an exception. Keys go into a header and nowhere else:
no exception of the HTTP library leaves this module, since its text holds the request.
"""

import asyncio
import io
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import quote

import aiohttp
import orjson

from horde.oai.roots import Roots

__all__ = [
    "CallOutcome",
    "CallType",
    "Caller",
    "HordeClient",
    "HordeUnreachableError",
    "NativeAnswer",
    "cancel_max_connections",
    "create_http_client",
]

_MAX_ANSWER_BYTES: Final = 16 * 2**20
"""A reply is at most 1 MiB of text, six bytes a character at its worst in JSON; a model list is far smaller."""

_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_SHORTEST_SECONDS: Final = 0.001
"""The HTTP library takes no time at all for no limit."""

_KEEPALIVE_SECONDS: Final = 30.0
"""Under the server's own, so that a connection is never used while the server closes it."""

_WRITTEN_WHOLE_BYTES: Final = 2**20
"""A body over this is handed over part by part: written in one go it would hold up every other request."""

_FULL_TIME: Final = 0.9
"""Share of its limit that a call must have had left after its wait for a slot to say something about the root."""

_KEPT_HEADERS: Final = ("retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


class CallType(StrEnum):
    """What a native call is for (MET-15)."""

    SUBMIT = "submit"
    RECOVERY = "recovery"
    STATUS = "status"
    CANCEL = "cancel"
    MODELS = "models"


class CallOutcome(StrEnum):
    """How a native call ended (MET-16)."""

    OK = "ok"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    ABANDONED = "abandoned"


class HordeUnreachableError(Exception):
    """No answer came.

    Attributes:
        maybe_received: The Horde may have received and carried out the call.
        root: The base URL that failed, None when the call never got as far as one.
        out_of_time: The call's limit ended it, not the root.
    """

    def __init__(
        self, message: str, *, maybe_received: bool, root: str | None = None, out_of_time: bool = False
    ) -> None:
        super().__init__(message)
        self.maybe_received = maybe_received
        self.root = root
        self.out_of_time = out_of_time


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """An answer of the Horde.

    Attributes:
        status: HTTP status.
        body: Decoded JSON, None when it was none or too large.
        headers: The few headers the front passes on, names in lower case.
        root: The base URL that answered.
    """

    status: int
    body: Any
    headers: Mapping[str, str]
    root: str

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body when it is an object, else an empty one."""
        return self.body if isinstance(self.body, dict) else {}

    @property
    def rc(self) -> str | None:
        """The return code of a refusal; an answer without one says nothing about what happened."""
        value = self.fields.get("rc")
        return value if isinstance(value, str) and value else None

    @property
    def message(self) -> str | None:
        """The sentence of a refusal."""
        value = self.fields.get("message")
        return value if isinstance(value, str) and value else None

    @property
    def retry_after(self) -> int | None:
        """Whole seconds of ``Retry-After``, None when there is none or it is a date."""
        value = self.headers.get("retry-after", "").strip()
        return int(value) if value.isdecimal() and len(value) < 8 else None  # noqa: PLR2004 - a number of months


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a call is made.

    Attributes:
        api_key: The user's key; ``repr`` never shows it.
        client_agent: The composed ``Client-Agent``.
        client_address: The client's address, forwarded for the Horde's rate limit of anonymous users.
    """

    api_key: str
    client_agent: str
    client_address: str | None = None

    def __repr__(self) -> str:
        return f"Caller(client_agent={self.client_agent!r})"

    def headers(self) -> dict[str, str]:
        """Return the headers of a native call."""
        headers = {"apikey": self.api_key, "Client-Agent": self.client_agent}
        if self.client_address is not None:
            headers["X-Forwarded-For"] = self.client_address
        return headers


class CallObserver(Protocol):
    """Told of each native call's latency, from its slot to its end."""

    def native_call(self, call_type: CallType, outcome: CallOutcome, seconds: float) -> None:
        """Record one call."""


def cancel_max_connections(call_slots: int) -> int:
    """Return how many connections cancels have of their own, so that a full pool never blocks one (CAN-5, U15)."""
    return max(4, call_slots // 8)


@asynccontextmanager
async def create_http_client(limit: int) -> AsyncGenerator[aiohttp.ClientSession]:
    """Open an HTTP session with at most ``limit`` connections; no cookies, no redirects, no environment.

    Args:
        limit: Connections at once, over all roots.
    """
    connector = aiohttp.TCPConnector(limit=limit, keepalive_timeout=_KEEPALIVE_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, raise_for_status=False
    ) as session:
        yield session


class HordeClient:
    """Calls the native routes of one Horde.

    Args:
        session: For everything but cancels.
        cancel_session: For cancels, with connections of their own.
        roots: The Horde's base URLs.
        call_slots: Calls under way at once; a further one waits its turn.
        observer: Told of every call.
        call_seconds: The time that a root is given for a call. One that ran out of less, because its request's own
            time ran out, says nothing about the root.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        cancel_session: aiohttp.ClientSession,
        roots: Roots,
        *,
        call_slots: int,
        observer: CallObserver,
        call_seconds: float = 10.0,
    ) -> None:
        self._session = session
        self._cancel_session = cancel_session
        self.roots = roots
        self._slots = asyncio.Semaphore(call_slots)
        self._call_seconds = call_seconds
        self.cancel_slots = asyncio.Semaphore(cancel_max_connections(call_slots))
        self._observer = observer

    async def submit(
        self, body: bytes, caller: Caller, *, limit_seconds: float, after: str | None = None, recovery: bool = False
    ) -> NativeAnswer:
        """Submit a request, or re-send one under the same operation key.

        Args:
            body: The native body as JSON, the same bytes at every attempt.
            caller: The user.
            limit_seconds: Time for this attempt, its wait for a slot included.
            after: The root that the attempt before failed on.
            recovery: Whether this is a re-send.

        Raises:
            HordeUnreachableError: No answer came.
        """
        call_type = CallType.RECOVERY if recovery else CallType.SUBMIT
        return await self._call_in_slot(
            call_type, "POST", "/v2/generate/chat", caller, limit_seconds, data=body, after=after
        )

    async def status(self, request_id: str, caller: Caller, *, limit_seconds: float) -> NativeAnswer:
        """Read a request's status.

        Raises:
            HordeUnreachableError: No answer came.
        """
        path = f"/v2/generate/chat/status/{quote(request_id, safe='')}"
        return await self._call_in_slot(CallType.STATUS, "GET", path, caller, limit_seconds)

    async def models(self, caller: Caller, *, limit_seconds: float) -> NativeAnswer:
        """Read the list of text models.

        Raises:
            HordeUnreachableError: No answer came.
        """
        return await self._call_in_slot(CallType.MODELS, "GET", "/v2/status/models?type=text", caller, limit_seconds)

    async def cancel(self, request_id: str, caller: Caller, *, limit_seconds: float) -> NativeAnswer:
        """Cancel a request; the caller holds one of :attr:`cancel_slots`.

        Raises:
            HordeUnreachableError: No answer came.
        """
        path = f"/v2/generate/chat/status/{quote(request_id, safe='')}"
        return await self._call(CallType.CANCEL, "DELETE", path, caller, limit_seconds)

    async def cancel_operation(self, operation_key: str, caller: Caller, *, limit_seconds: float) -> NativeAnswer:
        """Cancel the request of an operation key, or leave a tombstone; the caller holds one of :attr:`cancel_slots`.

        Raises:
            HordeUnreachableError: No answer came.
        """
        path = f"/v2/generate/chat/operation/{quote(operation_key, safe='')}"
        return await self._call(CallType.CANCEL, "DELETE", path, caller, limit_seconds)

    async def _call_in_slot(
        self,
        call_type: CallType,
        method: str,
        path: str,
        caller: Caller,
        limit_seconds: float,
        *,
        data: bytes | None = None,
        after: str | None = None,
    ) -> NativeAnswer:
        """Take a slot and call, both within the limit (SUB-11)."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise HordeUnreachableError(
                "No connection to the Horde was free in time.", maybe_received=False, out_of_time=True
            ) from None
        try:
            left = max(_SHORTEST_SECONDS, limit_seconds - (time.monotonic() - began))
            full_time = limit_seconds >= self._call_seconds and left >= limit_seconds * _FULL_TIME
            return await self._call(call_type, method, path, caller, left, data=data, after=after, full_time=full_time)
        finally:
            self._slots.release()

    async def _call(
        self,
        call_type: CallType,
        method: str,
        path: str,
        caller: Caller,
        limit_seconds: float,
        *,
        data: bytes | None = None,
        after: str | None = None,
        full_time: bool = True,
    ) -> NativeAnswer:
        """Call the next root; the roots and the observer are told how it ended."""
        root = self.roots.pick(after=after)
        started = time.perf_counter()
        outcome = CallOutcome.ABANDONED
        try:
            answer = await self._exchange(call_type, method, root, path, caller, limit_seconds, data)
            outcome = CallOutcome.REFUSED if answer.status >= 400 else CallOutcome.OK  # noqa: PLR2004 - HTTP's errors
        except HordeUnreachableError as error:
            if error.root is not None and (full_time or not error.out_of_time):
                outcome = CallOutcome.UNREACHABLE
                self.roots.failed(root)
            raise
        finally:
            self._observer.native_call(call_type, outcome, time.perf_counter() - started)
        self.roots.answered(root)
        return answer

    async def _exchange(
        self,
        call_type: CallType,
        method: str,
        root: str,
        path: str,
        caller: Caller,
        limit_seconds: float,
        data: bytes | None,
    ) -> NativeAnswer:
        session = self._cancel_session if call_type is CallType.CANCEL else self._session
        if session.closed:
            raise HordeUnreachableError("The front is stopping.", maybe_received=False)
        headers = caller.headers()
        if data is not None:
            headers["Content-Type"] = "application/json"
        limits = aiohttp.ClientTimeout(total=limit_seconds, sock_connect=min(limit_seconds, _CONNECT_TIMEOUT_SECONDS))
        try:
            async with session.request(
                method, root + path, headers=headers, data=_payload(data), timeout=limits, allow_redirects=False
            ) as response:
                body = await _read_json(response)
                kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
                return NativeAnswer(response.status, body, kept, root)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            hurried = isinstance(error, TimeoutError) and limit_seconds < _CONNECT_TIMEOUT_SECONDS
            raise HordeUnreachableError(
                "The Horde did not accept a connection.", maybe_received=False, root=root, out_of_time=hurried
            ) from None
        except TimeoutError:
            raise HordeUnreachableError(
                "The Horde did not answer in time.", maybe_received=True, root=root, out_of_time=True
            ) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise HordeUnreachableError("The connection to the Horde broke.", maybe_received=True, root=root) from None


def _payload(data: bytes | None) -> bytes | io.BytesIO | None:
    """Return what the HTTP library is given: it writes a file's parts one after another."""
    return io.BytesIO(data) if data is not None and len(data) > _WRITTEN_WHOLE_BYTES else data


async def _read_json(response: aiohttp.ClientResponse) -> Any:  # noqa: ANN401 - any JSON value
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _MAX_ANSWER_BYTES:
            return None
        parts.append(part)
    try:
        return orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError:
        return None
