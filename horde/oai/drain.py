"""Stopping without dropping a request (decision U44)."""

import asyncio

from horde.oai.state import FrontState

__all__ = ["drain"]


async def drain(state: FrontState) -> None:
    """Wait for the stop signal, give running requests their time, then end the rest.

    Args:
        state: The front; its server keeps accepting for the accept time and then closes its listeners.
    """
    await state.stopping.wait()
    settings = state.settings
    await asyncio.sleep(settings.drain_accept_seconds)
    try:
        async with asyncio.timeout(settings.drain_seconds):
            await state.open_requests.wait_empty()
    except TimeoutError:
        state.cancels.hurry()
        state.open_requests.interrupt_all()
    await asyncio.Event().wait()  # The server ends this task; by itself it would count as dead.
