"""A model server that plays a script: OpenAI's chat completions, streamed, as well or as badly as a test wants.

* Each completion takes the next script of :attr:`ScriptedModel.scripts`, or the last one again when none is left.
* A script is a list of steps, played in order; after the last step the stream ends with ``[DONE]`` unless a
  :class:`Cut` ended it before.
* What a worker asks while it probes is no completion of a script's: :attr:`ScriptedModel.grammar` answers it.
* Every request body is recorded, and how many streams are open is known: a client that leaves closes its stream.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from horde.worker.backends.probes import PROBE_QUESTION

__all__ = ["Cut", "Fail", "Finish", "Raw", "Reason", "Say", "ScriptedModel", "Stall", "Step", "tokens"]

_CUT_LENGTH = 1_000_000
"""Announced length of a stream that is cut: its connection ends before so much was sent."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send content."""

    text: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Send reasoning in its own field."""

    text: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Send bytes as they are."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing until the event is set."""

    until: asyncio.Event


@dataclass(frozen=True, slots=True)
class Finish:
    """Say why the reply ended, and count tokens."""

    reason: str = "stop"
    prompt_tokens: int = 3
    completion_tokens: int = 5


@dataclass(frozen=True, slots=True)
class Cut:
    """End the connection in the middle."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an error instead of a stream; only as the first step."""

    status: int
    kind: str = "server_error"


type Step = Say | Reason | Raw | Stall | Finish | Cut | Fail


def tokens(text: str) -> list[Step]:
    """Return steps that send a text word by word and finish."""
    words = text.split(" ")
    return [*(Say(word + " ") for word in words[:-1]), Say(words[-1]), Finish()]


@dataclass(slots=True)
class ScriptedModel:
    """The server: an ASGI application with its records.

    Attributes:
        scripts: What the next completions do.
        model: Id of the one model listed.
        window: Listed as ``max_model_len``; None leaves it out.
        bodies: Bodies of the completions asked for, in order.
        headers: Headers of the last call.
        open_streams: Scripts that are being played; a probe's answer is none.
        listed: How often the model list was read.
        grammar: What it does with a schema: ``enforces`` it, ``ignores`` it or ``refuses`` it with 400.
        answers: Answers of further routes, by path.
        probes: How many probes it answered.
        available: False answers 503 to everything.
    """

    scripts: deque[Sequence[Step]] = field(default_factory=deque)
    model: str = "scripted-1B"
    window: int | None = 4096
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    open_streams: int = 0
    listed: int = 0
    grammar: Literal["enforces", "ignores", "refuses"] = "ignores"
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    probes: int = 0
    available: bool = True

    def play(self, *scripts: Sequence[Step]) -> None:
        """Put scripts into the queue."""
        self.scripts.extend(scripts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            *(Route(path, self._answer) for path in self.answers),
        ]
        await Starlette(routes=routes)(scope, receive, send)

    async def _models(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        self.listed += 1
        if not self.available:
            return _error(503, "unavailable")
        card: dict[str, Any] = {"id": self.model, "object": "model"}
        if self.window is not None:
            card["max_model_len"] = self.window
        return Response(orjson.dumps({"object": "list", "data": [card]}), media_type="application/json")

    async def _answer(self, request: Request) -> Response:
        return Response(orjson.dumps(self.answers[request.url.path]), media_type="application/json")

    async def _complete(self, request: Request) -> "Response | _ScriptedStream":
        self.headers = dict(request.headers)
        body = orjson.loads(await request.body())
        if self.available and any(each["content"] == PROBE_QUESTION for each in body.get("messages", ())):
            return self._answer_probe(body)
        self.bodies.append(body)
        if not self.available:
            return _error(503, "unavailable")
        script = self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]
        if script and isinstance(script[0], Fail):
            return _error(script[0].status, script[0].kind)
        return _CountedStream(self, script)

    def _answer_probe(self, body: dict[str, Any]) -> "Response | _ScriptedStream":
        self.probes += 1
        if self.grammar == "refuses":
            return _error(400, "invalid_request_error")
        if self.grammar == "ignores":
            return _ScriptedStream(tokens("The sea is wide."))
        wanted = body["response_format"]["json_schema"]["schema"]["properties"]
        document: dict[str, Any] = {"value": "probed"}
        call = {"name": "probe", "arguments": document}
        return _ScriptedStream([Say(orjson.dumps(call if "arguments" in wanted else document).decode()), Finish()])


class _ScriptedStream:
    """A response that plays a script until it ends or the client leaves, whichever comes first."""

    def __init__(self, script: Sequence[Step]) -> None:
        self._script = script

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_wait_for_leave(receive), name="test - model disconnect")
        playing = asyncio.create_task(self._play(send), name="test - model script")
        try:
            await asyncio.wait({leaving, playing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            playing.cancel()
            await asyncio.gather(leaving, playing, return_exceptions=True)

    async def _play(self, send: Send) -> None:
        cuts = any(isinstance(step, Cut) for step in self._script)
        headers = [(b"content-type", b"text/event-stream")]
        headers += [(b"content-length", str(_CUT_LENGTH).encode())] if cuts else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for data in self._events():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"" if cuts else b"data: [DONE]\n\n"})

    async def _events(self) -> AsyncIterator[bytes]:
        for step in self._script:
            match step:
                case Say(text):
                    yield _chunk({"content": text})
                case Reason(text):
                    yield _chunk({"reasoning_content": text})
                case Raw(data):
                    yield data
                case Stall(until):
                    await until.wait()
                case Finish():
                    yield _chunk({}, step.reason)
                    yield _event({"choices": [], "usage": _usage(step)})
                case Cut():
                    return
                case Fail():
                    raise AssertionError("Fail is a script's first step.")


class _CountedStream(_ScriptedStream):
    """A script's stream, counted among the model's open ones while it is played."""

    def __init__(self, model: ScriptedModel, script: Sequence[Step]) -> None:
        super().__init__(script)
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._model.open_streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._model.open_streams -= 1


async def _wait_for_leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _usage(step: Finish) -> dict[str, int]:
    return {"prompt_tokens": step.prompt_tokens, "completion_tokens": step.completion_tokens}


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _error(status: int, kind: str) -> Response:
    body = {"error": {"code": status, "message": "scripted", "type": kind}}
    return Response(orjson.dumps(body), status, media_type="application/json")
