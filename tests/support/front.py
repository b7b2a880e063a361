"""The front over a scripted Horde, in the test's own process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.metrics import Meter

from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from horde.oai.state import FrontState
from tests.support.scripted_horde import MODEL, ScriptedHorde, scripted_horde
from tests.support.streaming_transport import InProcessClient, in_process_client

__all__ = ["FAST", "Front", "chat_body", "running_front"]

FAST: Mapping[str, Any] = {
    "poll_seconds": 0.02,
    "signal_recheck_seconds": 0.02,
    "fail_fast_grace_seconds": 0.1,
    "cancel_retry_seconds": 0.05,
    "call_timeout_seconds": 10.0,
    "submit_timeout_seconds": 10.0,
    "cancel_timeout_seconds": 5.0,
    "nonstream_timeout_seconds": 30.0,
    "stream_timeout_seconds": 30.0,
    "drain_accept_seconds": 0.0,
}
"""Intervals short enough for tests; what a test is about, it sets itself."""


class Front:
    """A front in this process and the Horde behind it."""

    def __init__(self, client: InProcessClient, horde: ScriptedHorde) -> None:
        self.client = client
        self.horde = horde

    @property
    def state(self) -> FrontState:
        """The front's own state."""
        state = self.client.state["front"]
        assert isinstance(state, FrontState)
        return state


def chat_body(**more: Any) -> dict[str, Any]:
    """Return a minimal chat request with more keys."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | more


@asynccontextmanager
async def running_front(
    *, meter: Meter | None = None, horde: ScriptedHorde | None = None, **settings: Any
) -> AsyncIterator[Front]:
    """Run the front over a scripted Horde.

    Args:
        meter: Where instruments are created.
        horde: A Horde that already runs; a new one otherwise.
        settings: Settings other than :data:`FAST`.
    """
    if horde is None:
        async with scripted_horde() as own, running_front(meter=meter, horde=own, **settings) as front:
            yield front
        return
    values = {"horde_urls": (horde.url,), **FAST, **settings}
    async with in_process_client(create_app(FrontSettings(**values), meter=meter)) as client:
        yield Front(client, horde)
