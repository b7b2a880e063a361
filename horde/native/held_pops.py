"""Pops that are held open until a request fits, and the wake-ups that shorten their wait.

A wake-up is a hint: the pop then claims like any other, and looks again by itself every few seconds. A submit wakes one
held pop that fits, first of its own process; when none does, the other processes are told and each wakes at most one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import orjson
from loguru import logger
from redis.asyncio import Redis
from redis.exceptions import RedisError

from horde.native.eligibility import RequestNeeds, WorkerFacts, is_eligible
from horde.native.keys import WAKE_CHANNEL
from horde.native.publish import Publisher

__all__ = ["HeldPop", "HeldPops", "listen_for_wakes"]

_RECONNECT_SECONDS: Final = 1.0
_LISTEN_SECONDS: Final = 10.0


class HeldPop:
    """A pop that waits.

    Attributes:
        facts: The worker, as it declared itself on this pop.
        woken: Set when a request that fits may be there.
        needs: That request, as of the last wake-up; None before the first.
    """

    def __init__(self, facts: WorkerFacts) -> None:
        self.facts = facts
        self.woken = asyncio.Event()
        self.needs: RequestNeeds | None = None


class HeldPops:
    """The held pops of this process, the longest waiting first."""

    def __init__(self) -> None:
        self._held: dict[HeldPop, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    @contextlib.contextmanager
    def hold(self, facts: WorkerFacts) -> Iterator[HeldPop]:
        """Register a pop for as long as the context is open."""
        pop = HeldPop(facts)
        self._held[pop] = None
        try:
            yield pop
        finally:
            del self._held[pop]

    def wake(self, needs: RequestNeeds) -> bool:
        """Wake the longest waiting pop that fits and was not woken yet; False when there is none.

        A worker that failed the request is woken last.
        """
        fitting = [pop for pop in self._held if not pop.woken.is_set() and is_eligible(pop.facts, needs)]
        if not fitting:
            return False
        chosen = min(fitting, key=lambda pop: pop.facts.id in needs.failed_workers)
        chosen.needs = needs
        chosen.woken.set()
        return True

    def wake_all(self) -> None:
        """Wake every pop, at shutdown."""
        for pop in self._held:
            pop.woken.set()

    async def announce(self, needs: RequestNeeds, publisher: Publisher) -> None:
        """Tell a pop of a request that waits: one of this process, else the other processes."""
        if not self.wake(needs):
            await publisher.wake(orjson.dumps(needs.to_fields()))

    async def pass_on(self, pop: HeldPop, publisher: Publisher) -> None:
        """Tell another pop of the request that this one was woken for and will not look for any more.

        Args:
            pop: A pop that is not held any more.
            publisher: Tells the other processes.
        """
        if pop.woken.is_set() and pop.needs is not None:
            await self.announce(pop.needs, publisher)


async def listen_for_wakes(redis: Redis, held_pops: HeldPops) -> None:
    """Wake held pops of this process for requests that others took in; runs until it is cancelled.

    Args:
        redis: A client; its connection is used for the subscription alone.
        held_pops: The pops of this process.
    """
    while True:
        try:
            async with _subscription(redis) as messages:
                async for body in messages:
                    _wake_for_message(held_pops, body)
        except (RedisError, OSError) as error:
            logger.warning("Wake-ups from other processes are off ({}); trying again", type(error).__name__)
            await asyncio.sleep(_RECONNECT_SECONDS)


def _wake_for_message(held_pops: HeldPops, body: bytes) -> None:
    # Anyone can publish there, another version of the Horde too: what cannot be read wakes nobody.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        held_pops.wake(RequestNeeds.from_fields(orjson.loads(body)))


@contextlib.asynccontextmanager
async def _subscription(redis: Redis) -> AsyncIterator[AsyncIterator[bytes]]:
    subscription = redis.pubsub(ignore_subscribe_messages=True)
    try:
        await subscription.subscribe(WAKE_CHANNEL)
        yield _messages(subscription)
    finally:
        await subscription.aclose()  # type: ignore[no-untyped-call] # redis publishes no type for it


async def _messages(subscription: Any) -> AsyncIterator[bytes]:  # noqa: ANN401 - redis publishes no type for it
    while True:
        # A read with a bound, then a ping: a connection that died silently is noticed.
        message = await subscription.get_message(timeout=_LISTEN_SECONDS)
        if message is None:
            await subscription.ping()
        elif message["type"] == "message":
            yield message["data"]
