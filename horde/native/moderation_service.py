"""Moderation of prompts by a service that speaks OpenAI's ``POST /v1/moderations`` (NAT-17).

Every prompt is asked about anew: an answer is kept nowhere, and neither is a prompt. What the service is sent, what it
may answer, how long it may take and how many calls are open at once are all bounded.
"""

import asyncio
from collections.abc import Sequence
from math import ceil
from typing import Any, Final, Self

import aiohttp
import orjson
from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from horde.native.moderation import ModerationUnavailableError

__all__ = ["ModerationService"]

_MAX_INPUTS: Final = 256
"""Texts of one call; more are sent together, as many at a time as it takes."""

_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_MAX_CONNECTIONS: Final = 64
"""Calls open at once; the next wait, within their time."""

_KEEPALIVE_SECONDS: Final = 60.0
_OK: Final = 200


class _Result(BaseModel):
    """What the service says of one text; the categories are its own business."""

    model_config = ConfigDict(strict=True, extra="ignore")

    flagged: bool


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    results: list[_Result] = Field(min_length=1)


class _UnusableAnswerError(Exception):
    """The service answered something else than results; the message says what, without any of it."""


class ModerationService:
    """Asks a moderation service about each prompt; an async context manager.

    Args:
        url: The service's address, complete: ``https://host/v1/moderations``. Redirects are not followed.
        api_key: Sent as a bearer token, or None.
        model: The moderation model to ask for, or None for the service's own choice.
        seconds: Longest time of one prompt, all of it included.
        max_bytes: Largest prompt, in UTF-8 bytes, that is sent. A larger one is refused, or let through where the
            service fails open.
        fails_open: Whether a prompt that could not be looked at is let through; else it is refused, or not taken in
            while the service fails.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: SecretStr | None = None,
        model: str | None = None,
        seconds: float = 2.0,
        max_bytes: int = 1024 * 1024,
        fails_open: bool = False,
    ) -> None:
        self._url = url
        self._api_key = api_key
        self._model = model
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._fails_open = fails_open
        self._failing = False
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Make the HTTP client, whose connections are used again."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "horde-native"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key.get_secret_value()}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=headers,
            # One limit for all of a prompt, in refuses().
            timeout=aiohttp.ClientTimeout(),
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close it."""
        if self._session is not None:
            await self._session.close()

    async def refuses(self, texts: Sequence[str]) -> bool:
        """Say whether a prompt of these texts is refused.

        Raises:
            ModerationUnavailableError: It could not be looked at, and such prompts are not let through.
        """
        body = self._body(texts)
        if body is None or len(body) > self._max_bytes:
            return body is not None and not self._fails_open
        try:
            async with asyncio.timeout(self._seconds):
                flagged = await self._ask(body)
        except (aiohttp.ClientError, OSError, TimeoutError, _UnusableAnswerError) as error:
            self._note_failure(error)
            if self._fails_open:
                return False
            raise ModerationUnavailableError from None
        if self._failing:
            self._failing = False
            logger.info("The moderation service answers again")
        return flagged

    def _note_failure(self, error: Exception) -> None:
        """Log the first of a row of failures: without the prompt, the key, and what the service said."""
        if not self._failing:
            self._failing = True
            reason = str(error) if isinstance(error, _UnusableAnswerError) else type(error).__name__
            outcome = "let through" if self._fails_open else "not taken in"
            logger.warning("Prompts cannot be moderated ({}) and are {}", reason, outcome)

    def _body(self, texts: Sequence[str]) -> bytes | None:
        """Return what the service is sent, or None when there is nothing to look at."""
        inputs = _grouped([text for text in texts if text.strip()])
        document: dict[str, Any] = {"input": inputs}
        if self._model is not None:
            document["model"] = self._model
        return orjson.dumps(document) if inputs else None

    async def _ask(self, body: bytes) -> bool:
        try:
            data = await self._post(body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # A kept connection that the service closed meanwhile; asking twice changes nothing.
            data = await self._post(body)
        try:
            answer = _Answer.model_validate_json(data)
        except ValidationError:
            raise _UnusableAnswerError("the answer holds no results") from None
        return any(result.flagged for result in answer.results)

    async def _post(self, body: bytes) -> bytes:
        assert self._session is not None  # noqa: S101 - entered before it is used
        async with self._session.post(self._url, data=body, allow_redirects=False) as response:
            if response.status != _OK:
                raise _UnusableAnswerError(f"the answer's status is {response.status}")
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > _MAX_ANSWER_BYTES:
                    raise _UnusableAnswerError(f"the answer is larger than {_MAX_ANSWER_BYTES} bytes")
        return bytes(data)


def _grouped(texts: list[str]) -> list[str]:
    """Return at most :data:`_MAX_INPUTS` texts, neighbours put together where there are more."""
    each = max(1, ceil(len(texts) / _MAX_INPUTS))
    return ["\n\n".join(texts[start : start + each]) for start in range(0, len(texts), each)]
