"""Model servers: what the worker asks of them, and one module for each kind."""

import aiohttp

from horde.worker.backends.base import ChatBackend
from horde.worker.backends.llama_cpp import LlamaCppBackend
from horde.worker.backends.openai_compatible import BackendLocation, OpenAICompatibleBackend

__all__ = ["recognise_backend"]


async def recognise_backend(session: aiohttp.ClientSession, location: BackendLocation) -> ChatBackend:
    """Find out which kind of server answers and return the backend for it.

    Raises:
        BackendUnavailableError: Nothing answers there, or a server that cannot work yet.
    """
    llama_cpp = LlamaCppBackend(session, location)
    if await llama_cpp.recognise():
        return llama_cpp
    return OpenAICompatibleBackend(session, location)
