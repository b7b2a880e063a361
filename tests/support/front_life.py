"""The life of one chat request under a script: the real front over a model Horde, in virtual time.

Everything from the chat handler to the response's ASGI messages is the front's own code, with its background tasks;
only sockets are replaced, by the model's HTTP session and its Redis connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from starlette.types import Message

import horde.oai.app
from horde.oai.app import open_front
from horde.oai.chat import chat_completions
from horde.oai.horde_client import cancel_max_connections
from horde.oai.settings import FrontSettings
from horde.oai.state import FrontState
from tests.support.front import chat_body
from tests.support.model_horde import CallFate, HordeRequest, ModelHorde
from tests.support.virtual_time import run_in_virtual_time

__all__ = ["BUDGETS", "Life", "LifeScript", "Step", "live"]

BUDGETS = {True: 60.0, False: 40.0}
"""Seconds a request may wait, by whether it is streamed."""

RETRY_TIME_SECONDS = 100.0
"""Time after the answer in which failed cancels are sent again."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens.

    Attributes:
        kind: ``start``, ``post``, ``requeue``, ``finish``, ``fault``, ``cancel``, ``impossible``, ``possible``,
            ``gap``, ``forget`` to the request; ``leave`` by the client; ``stop`` to the front; ``redis_down`` and
            ``redis_up``.
        wait: Seconds before it.
        text: What is posted, or what the reply adds to the posts.
        reasoning: Likewise.
        copies: How often a post or a marker is written to the stream.
        signals: How often it is signalled; 0 is a lost signal.
        honest: Whether a reply begins with what was posted.
    """

    kind: str
    wait: float = 0.0
    text: str = ""
    reasoning: str = ""
    copies: int = 1
    signals: int = 1
    honest: bool = True


@dataclass(frozen=True, slots=True)
class LifeScript:
    """One request and all that happens to it.

    Attributes:
        read_seconds: Time the client takes to read a part.
        statuses: What the request has become when its status is read for the first time, the second time, and so on:
            a state, or a fate of the read.
        submits: Fates of the submits; ``reads`` and ``cancels`` likewise.
    """

    steps: tuple[Step, ...]
    stream: bool = True
    usage: bool = True
    reasoning: bool = True
    fail_fast: bool = False
    redis: bool = True
    paced: bool = True
    read_seconds: float = 0.0
    statuses: tuple[str, ...] = ()
    submits: tuple[CallFate, ...] = ()
    reads: tuple[CallFate, ...] = ()
    cancels: tuple[CallFate, ...] = ()


@dataclass(slots=True)
class Life:
    """What happened.

    Attributes:
        messages: What the front sent, with its time.
        left_at: When the client left.
        began: When the request arrived.
        ended: When the front was done with it.
        replied_at: When the reply was made.
        left_behind: What was not released when the request ended.
        calls_at_end: Native calls made until then.
        live_at_last: Requests that still run on the Horde when there was time for every retry.
    """

    horde: ModelHorde
    messages: list[tuple[float, Message]] = field(default_factory=list)
    left_at: float | None = None
    stopped_at: float | None = None
    began: float = 0.0
    ended: float = 0.0
    replied_at: float | None = None
    left_behind: list[str] = field(default_factory=list)
    live_at_last: list[HordeRequest] = field(default_factory=list)
    honest: bool = True
    whole_posts: bool = True


def live(script: LifeScript) -> Life:
    """Play a script to its end."""
    return run_in_virtual_time(_Player(script).play())


class _Player:
    """Plays one script."""

    def __init__(self, script: LifeScript) -> None:
        self.script = script
        self.gone = asyncio.Event()
        self.stopping = asyncio.Event()
        self.body_sent = False
        fates = {"POST": list(script.submits), "GET": list(script.reads), "DELETE": list(script.cancels)}
        self.horde = ModelHorde(fates)
        self.horde.before_read = self._become
        self.statuses = list(script.statuses)
        self.life = Life(self.horde)
        self.reasonings: list[str] = []

    async def play(self) -> Life:
        failures: list[str] = []
        with _networks_of(self.horde):
            async with open_front(
                self._settings(), stopping=self.stopping, on_failure=lambda: failures.append("a task died")
            ) as state:
                await asyncio.sleep(0.01)
                await self._live_in(state)
                if not self.stopping.is_set():
                    await asyncio.sleep(RETRY_TIME_SECONDS)
                    self.life.left_behind += _held_after_retries(state)
        self.life.live_at_last = [each for each in self.horde.requests.values() if each.live]
        self.life.left_behind += failures
        return self.life

    async def _live_in(self, state: FrontState) -> None:
        loop = asyncio.get_running_loop()
        self.life.began = loop.time()
        scope = {"type": "http", "headers": [(b"authorization", b"Bearer key")], "client": ("192.0.2.1", 1)}
        exchange = asyncio.create_task(chat_completions(state, scope, self._receive, self._send))
        driver = asyncio.create_task(self._drive())
        await exchange
        self.life.ended = loop.time()
        self.life.left_behind += _held(state)
        await driver

    def _settings(self) -> FrontSettings:
        return FrontSettings(
            horde_urls=("http://horde/api",),
            redis_url="redis://model" if self.script.redis else None,
            stream_timeout_seconds=BUDGETS[True],
            nonstream_timeout_seconds=BUDGETS[False],
            pace_streams=self.script.paced,
            drain_accept_seconds=0.0,
            drain_seconds=2.0,
        )

    # The client

    async def _receive(self) -> Message:
        if not self.body_sent:
            self.body_sent = True
            script = self.script
            more: dict[str, Any] = {"stream": True} if script.stream else {}
            if script.stream and script.usage:
                more["stream_options"] = {"include_usage": True}
            mode = "fail_fast" if script.fail_fast else "wait"
            more["horde"] = {"availability_mode": mode, "include_reasoning": script.reasoning}
            return {"type": "http.request", "body": orjson.dumps(chat_body(**more)), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        now = asyncio.get_running_loop().time()
        if not self.gone.is_set():
            self.life.messages.append((now, message))
            await asyncio.sleep(self.script.read_seconds)

    # What happens

    async def _drive(self) -> None:
        for step in self.script.steps:
            await asyncio.sleep(step.wait)
            self._take(step)

    def _take(self, step: Step) -> None:
        now = asyncio.get_running_loop().time()
        match step.kind:
            case "leave":
                self.life.left_at = self.life.left_at or now
                self.gone.set()
            case "stop":
                self.life.stopped_at = self.life.stopped_at or now
                self.stopping.set()
            case "redis_down":
                self.horde.redis.break_off()
            case "redis_up":
                self.horde.redis.down = False
            case _:
                for request in self.horde.requests.values():
                    self._happen(request, step)

    def _happen(self, request: HordeRequest, step: Step) -> None:
        handler: Callable[[HordeRequest, Step], str | None] = getattr(self, f"_{step.kind}")
        event = handler(request, step)
        for _ in range(step.signals if event else 0):
            self.horde.signal(request, event or "")

    def _become(self, request: HordeRequest) -> CallFate | None:
        """Let a request be what the script says that this read sees."""
        if not self.statuses:
            return None
        kind = self.statuses.pop(0)
        request.possible, request.gap = kind != "impossible", kind == "gap"
        match kind:
            case "queued" | "impossible" | "gap":
                self.horde.change(request, "queued")
            case "processing":
                self.horde.change(request, "processing")
            case "restarted":
                request.attempt += 1
                self.horde.change(request, "processing")
            case "finished":
                self.horde.change(request, "processing")
                self._finish(request, Step("finish", text="Hello there."))
            case "faulted" | "cancelled" | "forgotten":
                self.horde.change(request, kind)
            case _:
                return cast("CallFate", kind)
        return None

    def _start(self, request: HordeRequest, _step: Step) -> str | None:
        if request.state != "queued":
            return None
        request.attempt += 1
        request.posts, request.told, self.reasonings = [], 0, []
        self.horde.change(request, "processing")
        return "started"

    def _post(self, request: HordeRequest, step: Step) -> None:
        if request.state == "processing":
            self.life.whole_posts = self.life.whole_posts and step.copies == 1
            self.reasonings.append(step.reasoning)
            self.horde.post(request, step.text, step.reasoning, step.copies)

    def _requeue(self, request: HordeRequest, step: Step) -> str | None:
        if request.state != "processing":
            return None
        for _ in range(step.copies):
            self.horde.mark_ended(request, "lease_expired")
        self.horde.change(request, "queued")
        return "requeued"

    def _finish(self, request: HordeRequest, step: Step) -> str | None:
        if request.state != "processing":
            return None
        self.life.honest = step.honest
        self.life.replied_at = asyncio.get_running_loop().time()
        posted = "".join(request.posts) if step.honest else "Another reply. "
        self.horde.finish(request, posted + step.text, "".join(self.reasonings) + step.reasoning)
        return "finished"

    def _fault(self, request: HordeRequest, step: Step) -> str | None:
        if not request.live:
            return None
        if request.state == "processing":
            for _ in range(step.copies):
                self.horde.mark_ended(request, "faulted")
        self.horde.change(request, "faulted")
        return "faulted"

    def _cancel(self, request: HordeRequest, step: Step) -> str | None:
        if not request.live:
            return None
        for _ in range(step.copies):
            self.horde.mark_ended(request, "cancelled")
        self.horde.change(request, "cancelled")
        return "cancelled"

    def _impossible(self, request: HordeRequest, _step: Step) -> None:
        request.possible = False

    def _possible(self, request: HordeRequest, _step: Step) -> None:
        request.possible, request.gap = True, False

    def _gap(self, request: HordeRequest, _step: Step) -> None:
        request.gap = True

    def _forget(self, request: HordeRequest, _step: Step) -> None:
        self.horde.change(request, "forgotten")


def _held(state: FrontState) -> list[str]:
    """Return what one request should have released by its end."""
    counts = {
        "slots": state.limiter.in_use,
        "sources": state.limiter.source_count,
        "open requests": len(state.open_requests),
        "relaying": state.open_requests.relaying,
    }
    if state.listener is not None and state.reader is not None:
        reader = state.reader
        counts["signal subscriptions"] = len(state.listener._subscriptions)
        counts["delta streams"] = len(reader._joining) + len(reader._reading) + len(reader._fresh)
    for task in asyncio.all_tasks():
        if task.get_name() in {"front - chat request", "front - client", "front - waiter", "front - deltas"}:
            counts[task.get_name()] = 1
    return [f"{name}: {count}" for name, count in counts.items() if count]


def _held_after_retries(state: FrontState) -> list[str]:
    """Return what should be released when every cancel had its time."""
    cancels, client = state.cancels, state.client
    counts = {
        "cancels kept": cancels.failed_count,
        "cancels running": len(cancels._running) + len(cancels._following),
        "call slots": state.settings.call_slots - client._slots._value,
        "cancel slots": cancel_max_connections(state.settings.call_slots) - client.cancel_slots._value,
        "last reads": len(state.reader._last_reads) if state.reader is not None else 0,
    }
    return [f"{name}: {count}" for name, count in counts.items() if count]


@contextmanager
def _networks_of(horde: ModelHorde) -> Iterator[None]:
    """Let the front be opened over the model in place of sockets."""

    @asynccontextmanager
    async def model_session(_limit: int) -> AsyncIterator[ModelHorde]:
        yield horde

    @asynccontextmanager
    async def model_redis(_url: str, **_options: object) -> AsyncIterator[Any]:
        yield horde.redis

    module: Any = horde_oai_app()
    real = module.create_http_client, module.open_redis
    module.create_http_client, module.open_redis = model_session, model_redis
    try:
        yield
    finally:
        module.create_http_client, module.open_redis = real


def horde_oai_app() -> Any:
    """Return the module that opens the front's networks."""
    return horde.oai.app
