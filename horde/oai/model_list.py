"""Model cards from the native model list, cached, read once for any number of clients (rules MDL)."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from horde.chat_contract import ANONYMOUS_API_KEY
from horde.oai.attribution import build_client_agent
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.horde_client import Caller, HordeClient, HordeUnreachableError
from horde.oai.mapping import build_model_card

__all__ = ["ModelCatalog"]

_HTTP_OK: Final = 200


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

    async def cards(self) -> Mapping[str, dict[str, Any]]:
        """Return the cards by model id, in the Horde's order.

        Raises:
            ChatFrontError: The Horde gave no list, and the last good one is too old.
        """
        if self._cards is None or self._clock() - self._read_at >= self._fresh_seconds:
            await asyncio.shield(self._refreshing())
        if self._cards is None or self._clock() - self._read_at > self._fresh_seconds + self._stale_seconds:
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

    def _refreshing(self) -> "asyncio.Task[None]":
        """Return the one refresh under way, started when there is none."""
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.create_task(self._read(), name="front - model list")
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
