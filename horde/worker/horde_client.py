"""The worker's three calls to a Horde, and what their answers mean for a retry.

A pop may be sent again under its ``pop_id`` and a submit under its job id: the Horde answers both exactly once. A
progress post may not: a copy of a post that was received would break the relayed stream, so it is sent again only
when it surely never arrived. The key is a header of the session and appears in no error and no log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import orjson

from horde.worker.payloads import JSON_HEADERS, json_payload

__all__ = [
    "BRIDGE_AGENT",
    "AnswerTooLargeError",
    "HordeAnswer",
    "HordeAwayError",
    "HordeClient",
    "ProgressVerdict",
    "normalise_horde_url",
]

_CONNECT_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 15.0
_PROGRESS_SECONDS: Final = 5.0
_KEEPALIVE_SECONDS: Final = 15.0
"""Idle connections are given up long before a server would close them: a post must not meet a closing one."""

_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Bound of a popped job: 1 MiB of texts, escaped, beside the tools and schemas."""

_MAX_RETRY_AFTER_SECONDS: Final = 3600.0


_REFUSALS: Final = range(400, 500)

_TRY_AGAIN: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
"""Refusals that do not stand."""


def _package_version() -> str:
    try:
        return version("horde-oai")
    except PackageNotFoundError:
        return "0"


BRIDGE_AGENT: Final = f"horde-oai-worker:{_package_version()}:https://github.com/Haidra-Org"
"""Name, version and contact, as the Horde's statistics expect them."""


class HordeAwayError(Exception):
    """The Horde gave no answer that says what happened.

    Attributes:
        maybe_received: The call may have arrived and taken effect.
        retry_after: Seconds that the Horde asked to wait, or None.
    """

    def __init__(self, message: str, *, maybe_received: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.maybe_received = maybe_received
        self.retry_after = retry_after


class AnswerTooLargeError(HordeAwayError):
    """The Horde answered with more than this worker reads; the same call would be answered the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HordeAnswer:
    """An answer of the Horde itself: a success, or a refusal that stands.

    Attributes:
        status: HTTP status.
        body: The object answered with.
    """

    status: int
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the call did what it was meant to."""
        return self.status == HTTPStatus.OK

    @property
    def rc(self) -> str | None:
        """The Horde's return code of a refusal."""
        rc = self.body.get("rc")
        return rc if isinstance(rc, str) else None

    @property
    def message(self) -> str:
        """The Horde's sentence of a refusal, shortened for a log."""
        message = self.body.get("message")
        text = message if isinstance(message, str) else f"HTTP {self.status}"
        return text[:300]


class ProgressVerdict(Enum):
    """What became of a progress post."""

    ACCEPTED = auto()
    CANCELLED = auto()
    """The job is cancelled, ended or unknown: stop and drop it."""
    NOT_RECEIVED = auto()
    """It surely had no effect and may be sent again."""
    UNKNOWN = auto()
    """It may have been received: this job's text is not posted any further."""


def normalise_horde_url(url: str) -> str:
    """Return a Horde's API root, ending in ``/api``, whether or not the address was given with it."""
    root = url.rstrip("/")
    return root if root.endswith("/api") else root + "/api"


class HordeClient:
    """Calls of one worker to one Horde; an async context manager that owns its connections.

    Args:
        horde_url: Address of the Horde, with or without ``/api``.
        api_key: The worker owner's key.
        connection_limit: Most connections at a time; a held pop takes one, each running job up to two.
    """

    def __init__(self, horde_url: str, api_key: str, *, connection_limit: int) -> None:
        self._root = normalise_horde_url(horde_url)
        self._api_key = api_key
        self._connection_limit = connection_limit
        self._open_session: aiohttp.ClientSession | None = None

    @property
    def root(self) -> str:
        """The API root, safe to show: user information is left out."""
        address = urlsplit(self._root)
        return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()

    async def __aenter__(self) -> Self:
        self._open_session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connection_limit, keepalive_timeout=_KEEPALIVE_SECONDS),
            headers={"apikey": self._api_key, "Client-Agent": BRIDGE_AGENT},
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._open_session is not None:
            await self._open_session.close()
            self._open_session = None

    async def pop(self, body: Mapping[str, Any], *, wait_seconds: float) -> HordeAnswer:
        """Ask for a job.

        Args:
            body: The whole pop body.
            wait_seconds: Time for which the body allows the Horde to hold the pop.

        Raises:
            AnswerTooLargeError: Send another pop: this one's job cannot be read, and goes back by not being listed.
            HordeAwayError: Send the same pop again: its job may have been given out.
        """
        return await self._post("/v2/generate/text/pop", body, seconds=wait_seconds + _CALL_SECONDS)

    async def post_progress(self, job_id: str, seq: int | None, text: str, reasoning: str) -> ProgressVerdict:
        """Post what is new of a reply, or a heartbeat.

        Args:
            job_id: The job.
            seq: Number of the post, from 1; None for a heartbeat, which has no text.
            text: More of the content.
            reasoning: More of the reasoning.
        """
        body: dict[str, Any] = {"id": job_id}
        if seq is not None:
            body |= {"seq": seq, "text": text, "reasoning": reasoning}
        try:
            answer = await self._post("/v2/generate/chat/progress", body, seconds=_PROGRESS_SECONDS)
        except HordeAwayError as error:
            return ProgressVerdict.UNKNOWN if error.maybe_received else ProgressVerdict.NOT_RECEIVED
        if answer.ok and answer.body.get("cancelled") is True:
            return ProgressVerdict.CANCELLED
        return ProgressVerdict.ACCEPTED if answer.ok else ProgressVerdict.UNKNOWN

    async def submit(self, body: Mapping[str, Any]) -> HordeAnswer:
        """Submit a reply or a fault.

        Raises:
            HordeAwayError: Send it again: a second copy changes nothing.
        """
        return await self._post("/v2/generate/text/submit", body, seconds=_CALL_SECONDS)

    async def _post(self, path: str, body: Mapping[str, Any], *, seconds: float) -> HordeAnswer:
        if self._open_session is None:
            raise RuntimeError("The client is used outside its context.")
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._open_session.post(
                self._root + path,
                data=json_payload(body),
                headers=JSON_HEADERS,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await _read_bounded(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise HordeAwayError(f"it cannot be reached, {type(error).__name__}", maybe_received=False) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise HordeAwayError(f"it did not answer, {type(error).__name__}", maybe_received=True) from error
        return _judge(response, data)


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _MAX_ANSWER_BYTES:
            response.close()
            raise AnswerTooLargeError("its answer is larger than any job", maybe_received=True)
    return bytes(data)


def _judge(response: aiohttp.ClientResponse, data: bytes) -> HordeAnswer:
    """Return the Horde's answer, or raise when this is none of a Horde that works.

    A refusal stands when it is a 4xx with a JSON body. A 5xx without ``rc`` says nothing about what happened; with
    one, nothing happened. A proxy's page, a redirect or a captive portal is no Horde.
    """
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = None
    status = response.status
    is_object = isinstance(body, dict)
    has_code = is_object and isinstance(body.get("rc"), str)
    if is_object and (status == HTTPStatus.OK or (status in _REFUSALS and status not in _TRY_AGAIN)):
        return HordeAnswer(status=status, body=body)
    raise HordeAwayError(
        f"it answered HTTP {status}",
        maybe_received=not has_code and status != HTTPStatus.TOO_MANY_REQUESTS,
        retry_after=_retry_after(response.headers.get("Retry-After")),
    )


def _retry_after(value: str | None) -> float | None:
    if value is None or not value.strip().isdecimal():
        return None
    return min(float(value.strip()[:9]), _MAX_RETRY_AFTER_SECONDS)
