"""What lives as long as the front's process, and which requests are open in it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from horde.client_address import ClientAddresses
from horde.oai.admission import InflightLimiter
from horde.oai.body import BodyReader
from horde.oai.cancel import Cancels
from horde.oai.horde_client import HordeClient
from horde.oai.metrics import FrontMetrics
from horde.oai.model_list import ModelCatalog
from horde.oai.settings import FrontSettings
from horde.oai.submit import Submitter
from horde.oai.wait_answers import shutting_down_error
from horde.oai.waiter import CompletionSignalListener, DeltaStreamReader

__all__ = ["FrontState", "Interruptible", "OpenRequests"]


class Interruptible(Protocol):
    """An open request that can be told to end now."""

    def interrupt(self) -> None:
        """End it: cancelled on the Horde, its client told that the front stops."""


class OpenRequests:
    """The requests running in this process, for the drain."""

    def __init__(self) -> None:
        self._open: set[Interruptible] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.closed = False
        """Set when the front gives up what runs: no further request may begin."""
        self.relaying = 0
        """Streams that relay live text at present; pacing makes fewer pieces as they grow."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: Interruptible) -> None:
        """A request began."""
        self._open.add(request)
        self._empty.clear()

    def check_open(self) -> None:
        """Check that a request may begin.

        Raises:
            ChatFrontError: ``FrontShuttingDown``: what runs is being given up.
        """
        if self.closed:
            raise shutting_down_error(None)

    def remove(self, request: Interruptible) -> None:
        """A request ended."""
        self._open.discard(request)
        if not self._open:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until none is open."""
        await self._empty.wait()

    def interrupt_all(self) -> None:
        """Tell every open request to end now, and let none begin after it (decision U44)."""
        self.closed = True
        for request in list(self._open):
            request.interrupt()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontState:
    """The front's parts, built once by the application's lifespan.

    Attributes:
        stopping: Set when the process was told to stop; ``/readyz`` fails from then on.
        listener: Signals of the Horde, None without Redis.
        reader: Deltas of the Horde, None without Redis.
        redis_alive: Whether Redis answers at present, None without one.
    """

    settings: FrontSettings
    metrics: FrontMetrics
    client: HordeClient
    cancels: Cancels
    submitter: Submitter
    limiter: InflightLimiter
    bodies: BodyReader
    addresses: ClientAddresses
    catalog: ModelCatalog
    stopping: asyncio.Event
    listener: CompletionSignalListener | None = None
    reader: DeltaStreamReader | None = None
    open_requests: OpenRequests = field(default_factory=OpenRequests)
    redis_alive: Callable[[], bool | None] = lambda: None
