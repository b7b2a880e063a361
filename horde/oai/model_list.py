"""Model cards from the native model list, cached, read once for any number of clients (rules MDL)."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from loguru import logger

from horde.chat_contract import ANONYMOUS_API_KEY
from horde.oai.attribution import build_client_agent
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.horde_client import Caller, HordeClient, HordeUnreachableError
from horde.oai.mapping import build_model_card

__all__ = ["ModelCatalog"]

_HTTP_OK: Final = 200

_REFRESH_WAIT_SECONDS: Final = 1.0
"""How long a refresh keeps clients waiting that could be given the list in memory: a slow answer is worth that much."""


class ModelCatalog:
    """The model cards, refreshed by one native call at a time.

    Args:
        client: The native client.
        fresh_seconds: How long a list is served without asking again.
        stale_seconds: How long the last good list is served while the Horde gives none.
        call_seconds: Time for one native call.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: HordeClient,
        *,
        fresh_seconds: float,
        stale_seconds: float,
        call_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._fresh_seconds = fresh_seconds
        self._stale_seconds = stale_seconds
        self._call_seconds = call_seconds
        self._clock = clock
        self._cards: dict[str, dict[str, Any]] | None = None
        self._read_at = 0.0
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_began = 0.0

    async def cards(self) -> Mapping[str, dict[str, Any]]:
        """Return the cards by model id, in the Horde's order.

        A list that is no longer fresh is read again first; a Horde that hangs delays it by a second at most.

        Raises:
            ChatFrontError: The Horde gave no list, and the last good one is too old.
        """
        if self._cards is None or self._age() >= self._fresh_seconds:
            refresh = self._refreshing()
            wait = self._refresh_began + _REFRESH_WAIT_SECONDS - self._clock() if self._may_be_served() else None
            await asyncio.wait({refresh}, timeout=None if wait is None else max(0.0, wait))
        if self._cards is None or not self._may_be_served():
            raise ChatFrontError(
                FrontCode.HORDE_UNAVAILABLE, "The AI Horde did not give its list of models; retry shortly."
            )
        return self._cards

    async def known_cards(self) -> Mapping[str, dict[str, Any]]:
        """Return the cards as far as they can be had now, none when they cannot: for sizes in a message."""
        try:
            return await self.cards()
        except ChatFrontError:
            return {}

    async def refresh(self) -> None:
        """Read the list again, whatever its age, or find that the Horde gives none."""
        await asyncio.wait({self._refreshing()})

    async def close(self) -> None:
        """End the refresh under way."""
        if self._refresh is not None and not self._refresh.done():
            self._refresh.cancel()
            await asyncio.wait({self._refresh})

    def _age(self) -> float:
        return self._clock() - self._read_at

    def _may_be_served(self) -> bool:
        return self._cards is not None and self._age() <= self._fresh_seconds + self._stale_seconds

    def _refreshing(self) -> "asyncio.Task[None]":
        """Return the one refresh under way, started when there is none."""
        if self._refresh is None or self._refresh.done():
            self._refresh_began = self._clock()
            self._refresh = asyncio.create_task(self._read(), name="front - model list")
            self._refresh.add_done_callback(_log_defect)
        return self._refresh

    async def _read(self) -> None:
        caller = Caller(ANONYMOUS_API_KEY, build_client_agent({}))
        try:
            answer = await self._client.models(caller, limit_seconds=self._call_seconds)
        except HordeUnreachableError:
            return
        if answer.status != _HTTP_OK or not isinstance(answer.body, list):
            return
        built = (build_model_card(entry) for entry in answer.body if isinstance(entry, dict))
        self._cards = {card["id"]: card for card in built if card is not None}
        self._read_at = self._clock()


def _log_defect(refresh: "asyncio.Task[None]") -> None:
    """Log what a refresh was not meant to end in; its clients get the list in memory, or the error of having none."""
    if not refresh.cancelled() and (defect := refresh.exception()) is not None:
        logger.opt(exception=defect).error("Reading the list of models failed in a defect of the front")
