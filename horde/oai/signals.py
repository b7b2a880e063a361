"""Completion signals: the Horde says that something happened to a request, and its wait wakes (WAI-2).

Signals are hints. Losing every one costs latency, never a reply: at an outage each waiter is woken once, since it may
sleep long counting on signals, and again after it, so that it reads what it may have missed; while the subscription is
down ``alive`` tells the waits to poll faster.
"""

import asyncio
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

import orjson
from loguru import logger
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, SignalEvent
from horde.oai.redis_link import LINK_ERRORS, OutageLog, RedisLink, Reply
from horde.oai.wake import Wake

__all__ = ["CompletionSignalListener", "SignalSubscription"]

PING_SECONDS = 5.0
"""Silence after which the connection is asked whether it lives."""

PING_ANSWER_SECONDS = 3.0
"""Time in which it has to answer."""

WAKE_SPREAD_SECONDS = 2.0
"""Time over which the waiters are woken after a re-subscribe: ten thousand status reads at once would be a blow."""

_WAKE_SLOTS = 40
"""Steps in which that time is divided."""

_FIRST_BACKOFF_SECONDS = 0.1
_LAST_BACKOFF_SECONDS = 5.0
_LIMIT_SECONDS = 5.0
"""Longest time for connecting, and for a command."""


class SignalSubscription:
    """The signals of one request, from the moment it was registered; leaving the context forgets it.

    The order that loses nothing: ``clear()``, read the status, wait. A signal between the first two wakes again.

    Attributes:
        request_id: The Horde's id of the request.
        asks_for_read: Something came since ``clear`` that only a status read can tell more about. That the job has
            started is not: the signal says all of it.
        cancelled: A cancelled signal came (DWG-4).
        started: A started signal came and no requeued one after it: a worker generates, and deltas may come.
    """

    __slots__ = ("_forget", "_wake", "asks_for_read", "cancelled", "request_id", "started")

    def __init__(self, request_id: str, forget: Callable[["SignalSubscription"], None]) -> None:
        self.request_id = request_id
        self.asks_for_read = False
        self.cancelled = False
        self.started = False
        self._wake = Wake()
        self._forget: Callable[[SignalSubscription], None] | None = forget

    def clear(self) -> None:
        """Forget that a signal came, before a status read that sees what it stood for; never after it."""
        self.asks_for_read = False
        self._wake.clear()

    async def wait_within(self, seconds: float) -> bool:
        """Return whether any signal came since ``clear``, or a re-subscribe asked for a look; after a time at the most.

        Args:
            seconds: That time.
        """
        await self._wake.wait_within(seconds)
        return self._wake.is_set()

    def close(self) -> None:
        """Forget the request. Further calls do nothing."""
        forget, self._forget = self._forget, None
        if forget is not None:
            forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def wake(self) -> None:
        """Ask for a look at the status; called by the listener."""
        self.asks_for_read = True
        self._wake.set()

    def receive(self, event: SignalEvent) -> None:
        """Note a signal and wake the wait; called by the listener."""
        if event is SignalEvent.STARTED:
            self.started = True
            self._wake.set()
            return
        if event is SignalEvent.REQUEUED:
            self.started = False
        elif event is SignalEvent.CANCELLED:
            self.cancelled = True
        self.wake()


class CompletionSignalListener:
    """One subscription of the process for the signals of all its requests.

    Args:
        redis: Client of the server on which the Horde publishes.
        ping_seconds: Silence after which the connection is asked whether it lives.
        ping_answer_seconds: Time in which it has to answer.
        wake_spread_seconds: Time over which waiters are woken after a re-subscribe.
        jitter: Returns a number from 0 to 1: spreads wakes and attempts to subscribe.

    Attributes:
        alive: The subscription stands.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        ping_seconds: float = PING_SECONDS,
        ping_answer_seconds: float = PING_ANSWER_SECONDS,
        wake_spread_seconds: float = WAKE_SPREAD_SECONDS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.alive = False
        self._redis = redis
        self._ping_seconds = ping_seconds
        self._ping_answer_seconds = ping_answer_seconds
        self._wake_spread_seconds = wake_spread_seconds
        self._jitter = jitter
        self._subscriptions: dict[str, tuple[SignalSubscription, ...]] = {}
        self._wake_timers: set[asyncio.TimerHandle] = set()
        self._outage = OutageLog("The signal listener", "Waits poll the Horde meanwhile.")
        self._logged_malformed = False
        self._failures = 0

    def register(self, request_id: str) -> SignalSubscription:
        """Begin to note the signals of a request: before its first status read, so that none is missed."""
        subscription = SignalSubscription(request_id, self._forget)
        self._subscriptions[request_id] = (*self._subscriptions.get(request_id, ()), subscription)
        return subscription

    async def run(self) -> None:
        """Listen until cancelled."""
        link = RedisLink(self._redis, "horde-front-signals", limit_seconds=_LIMIT_SECONDS)
        try:
            while True:
                try:
                    await self._subscribe(link)
                    await self._listen(link)
                except LINK_ERRORS as error:
                    if self.alive:
                        # They may be in a wait that counts on signals; from now on they poll.
                        self._wake_everybody()
                    self.alive = False
                    self._outage.begin(error)
                    await link.close()
                    await asyncio.sleep(self._next_backoff())
        finally:
            self.alive = False
            for timer in self._wake_timers:
                timer.cancel()
            self._wake_timers.clear()
            await link.close()

    async def _subscribe(self, link: RedisLink) -> None:
        await link.open()
        await link.call(b"SUBSCRIBE", CHAT_SIGNALS_CHANNEL.encode())
        self.alive = True
        self._outage.end()
        self._wake_everybody()

    async def _listen(self, link: RedisLink) -> None:
        """Deliver signals until the connection fails."""
        asked = False
        while True:
            message = await link.read(self._ping_answer_seconds if asked else self._ping_seconds)
            if message is not None:
                # Any message shows that the connection lives. A subscribe alone does not: a connection that is always
                # lost right after it would wake every waiter many times a second.
                asked = False
                self._failures = 0
                self._deliver(message)
            elif asked:
                raise RedisConnectionError("The server does not answer.")
            else:
                await link.send(b"PING")
                asked = True

    def _deliver(self, message: Reply) -> None:
        match message:
            case [b"message", bytes(), bytes(body)]:
                request_id, event = self._read_signal(body)
                if event is not None:
                    for subscription in self._subscriptions.get(request_id, ()):
                        subscription.receive(event)
            case _:  # Answers to PING.
                pass

    def _read_signal(self, body: bytes) -> tuple[str, SignalEvent | None]:
        """Read a message, trusting nothing in it."""
        try:
            signal = orjson.loads(body)
            return str(signal["id"]), SignalEvent(signal["event"])
        except (ValueError, KeyError, TypeError):
            if not self._logged_malformed:
                self._logged_malformed = True
                logger.warning("A signal of the Horde could not be read; it and others like it are ignored.")
            return "", None

    def _wake_everybody(self) -> None:
        """Let each waiter look once, since its signal may have been missed; spread over time."""
        loop = asyncio.get_running_loop()
        slots: list[list[SignalSubscription]] = [[] for _ in range(_WAKE_SLOTS)]
        for subscriptions in self._subscriptions.values():
            slots[min(int(self._jitter() * _WAKE_SLOTS), _WAKE_SLOTS - 1)].extend(subscriptions)

        def wake(slot: list[SignalSubscription]) -> None:
            for subscription in slot:
                subscription.wake()

        now = loop.time()
        self._wake_timers = {timer for timer in self._wake_timers if timer.when() > now and not timer.cancelled()}
        for number, slot in enumerate(slots):
            if slot:
                delay = self._wake_spread_seconds * number / _WAKE_SLOTS
                self._wake_timers.add(loop.call_later(delay, wake, slot))

    def _next_backoff(self) -> float:
        """Return the next pause in seconds, doubling, at least half of it certain."""
        pause = min(_FIRST_BACKOFF_SECONDS * 2.0**self._failures, _LAST_BACKOFF_SECONDS)
        self._failures = min(self._failures + 1, 16)
        return pause * (0.5 + 0.5 * self._jitter())

    def _forget(self, subscription: SignalSubscription) -> None:
        left = tuple(each for each in self._subscriptions[subscription.request_id] if each is not subscription)
        if left:
            self._subscriptions[subscription.request_id] = left
        else:
            del self._subscriptions[subscription.request_id]
