"""Model servers: what the worker asks of them, and one module for each kind."""

from typing import Final

import aiohttp

from horde.worker.backends.base import ChatBackend
from horde.worker.backends.connection import BackendLocation, ModelServer
from horde.worker.backends.koboldcpp import KoboldCppBackend
from horde.worker.backends.llama_cpp import LlamaCppBackend
from horde.worker.backends.ollama import OllamaBackend
from horde.worker.backends.openai_compatible import OpenAICompatibleBackend
from horde.worker.backends.tabbyapi import TabbyApiBackend
from horde.worker.backends.vllm import VllmBackend

__all__ = ["BACKENDS", "recognise_backend"]

BACKENDS: Final[tuple[type[OpenAICompatibleBackend], ...]] = (
    LlamaCppBackend,
    KoboldCppBackend,
    OllamaBackend,
    VllmBackend,
    TabbyApiBackend,
    OpenAICompatibleBackend,
)

_BY_OWNER: Final[dict[str, type[OpenAICompatibleBackend]]] = {
    "koboldcpp": KoboldCppBackend,
    "vllm": VllmBackend,
    "tabbyAPI": TabbyApiBackend,
}
"""Who a server's model cards say owns the model: the server's own name, in these."""


async def recognise_backend(session: aiohttp.ClientSession, location: BackendLocation) -> ChatBackend:
    """Find out which kind of server answers and return the backend for it.

    The owner of the listed models decides where servers write their own name there; the others are told by routes that
    nobody copies from them.

    Raises:
        BackendError: Nothing answers there, or a server that cannot work yet or lists nothing.
    """
    owners = _owners(await ModelServer(session, location).call_api("/models"))
    for owner, backend in _BY_OWNER.items():
        if owner in owners:
            return backend(session, location)
    for kind in (LlamaCppBackend, OllamaBackend):
        candidate = kind(session, location)
        if await candidate.recognise():
            return candidate
    return OpenAICompatibleBackend(session, location)


def _owners(listed: dict[str, object]) -> set[object]:
    cards = listed.get("data")
    return {card.get("owned_by") for card in cards if isinstance(card, dict)} if isinstance(cards, list) else set()
