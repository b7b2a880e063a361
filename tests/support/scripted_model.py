"""A model server that plays a script: OpenAI's chat completions, streamed, as well or as badly as a test wants.

* Each completion takes the next script of :attr:`ScriptedModel.scripts`, or the last one again when none is left.
* A script is a list of steps, played in order; after the last step the stream ends with ``[DONE]`` unless a
  :class:`Cut` ended it before.
* What a worker asks while it probes is no completion of a script's: :attr:`ScriptedModel.talents` answer it.
* :attr:`ScriptedModel.answers` add routes, and ``/api/chat`` is Ollama's way to ask for a completion.
* Every request body is recorded, and how many streams are open is known: a client that leaves closes its stream.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.support.scripted_talents import Talents, asks_probe, probe_document

__all__ = ["Call", "Cut", "Fail", "Finish", "Raw", "Reason", "Say", "ScriptedModel", "Stall", "Step", "tokens"]

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
class Call:
    """Send a whole tool call, its arguments as JSON text."""

    name: str
    arguments: str


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


type Step = Say | Reason | Call | Raw | Stall | Finish | Cut | Fail


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
        owner: Who owns the model, on its card.
        talents: What it does when it is probed.
        answers: Answers of further routes, by path; a callable takes the body that was posted.
        calls: Bodies that were posted to those routes, by path.
        probed: Bodies of the probes, in order.
        refused_keys: Keys of a body that it does not know and answers with 400.
        available: False answers 503 to everything.
    """

    scripts: deque[Sequence[Step]] = field(default_factory=deque)
    model: str = "scripted-1B"
    window: int | None = 4096
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    open_streams: int = 0
    listed: int = 0
    owner: str | None = None
    talents: Talents = field(default_factory=Talents)
    answers: dict[str, dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    probed: list[dict[str, Any]] = field(default_factory=list)
    refused_keys: frozenset[str] = frozenset()
    available: bool = True

    def play(self, *scripts: Sequence[Step]) -> None:
        """Put scripts into the queue."""
        self.scripts.extend(scripts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/api/chat", self._complete, methods=["POST"]),
            *(Route(path, self._answer, methods=["GET", "POST"]) for path in self.answers),
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
        if self.owner is not None:
            card["owned_by"] = self.owner
        return Response(orjson.dumps({"object": "list", "data": [card]}), media_type="application/json")

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        answer = self.answers[path]
        posted = orjson.loads(await request.body() or b"{}")
        self.calls.setdefault(path, []).append(posted)
        document = answer(posted) if callable(answer) else answer
        return Response(orjson.dumps(document), media_type="application/json")

    async def _complete(self, request: Request) -> "Response | _ScriptedStream":
        self.headers = dict(request.headers)
        body = orjson.loads(await request.body())
        by_line = request.url.path == "/api/chat"
        if self.available and asks_probe(body):
            self.probed.append(body)
            if self.refused_keys & body.keys():
                return _error(400, "invalid_request_error")
            steps = self._answer_probe(body)
            if steps is None:
                return _error(400, "invalid_request_error")
            return _ScriptedStream(steps, by_line=by_line)
        self.bodies.append(body)
        if not self.available:
            return _error(503, "unavailable")
        script = self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]
        if script and isinstance(script[0], Fail):
            return _error(script[0].status, script[0].kind)
        return _CountedStream(self, script, by_line=by_line)

    def _answer_probe(self, body: dict[str, Any]) -> list[Step] | None:
        """Return the steps that answer a probe; None when it is refused."""
        reply = self.talents.answer(body)
        if reply is None:
            return None
        steps: list[Step] = []
        if reply.reasoning:
            steps.append(Reason(reply.reasoning))
        if reply.call:
            steps.append(Call("probe", probe_document()))
        elif reply.text:
            steps.append(Say(reply.text))
        return [*steps, Finish(reply.finish_reason)]


class _ScriptedStream:
    """A response that plays a script until it ends or the client leaves, whichever comes first."""

    def __init__(self, script: Sequence[Step], *, by_line: bool) -> None:
        self._script = script
        self._by_line = by_line

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
        end = b"" if cuts or self._by_line else b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": end})

    async def _events(self) -> AsyncIterator[bytes]:
        for step in self._script:
            match step:
                case Raw(data):
                    yield data
                case Stall(until):
                    await until.wait()
                case Cut():
                    return
                case Fail():
                    raise AssertionError("Fail is a script's first step.")
                case _:
                    yield _line(step) if self._by_line else _events_of(step)


class _CountedStream(_ScriptedStream):
    """A script's stream, counted among the model's open ones while it is played."""

    def __init__(self, model: ScriptedModel, script: Sequence[Step], *, by_line: bool) -> None:
        super().__init__(script, by_line=by_line)
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


def _call_part(step: Call) -> dict[str, Any]:
    return {"index": 0, "id": "call_1", "function": {"name": step.name, "arguments": step.arguments}}


def _events_of(step: Say | Reason | Call | Finish) -> bytes:
    """Return a step as server-sent events."""
    match step:
        case Say(text):
            return _chunk({"content": text})
        case Reason(text):
            return _chunk({"reasoning_content": text})
        case Call():
            return _chunk({"tool_calls": [_call_part(step)]})
        case Finish():
            return _chunk({}, step.reason) + _event({"choices": [], "usage": _usage(step)})


def _line(step: Say | Reason | Call | Finish) -> bytes:
    """Return a step as a line of Ollama's."""
    match step:
        case Say(text):
            return _told({"content": text})
        case Reason(text):
            return _told({"content": "", "thinking": text})
        case Call(name, arguments):
            call = {"function": {"name": name, "arguments": orjson.loads(arguments)}}
            return _told({"content": "", "tool_calls": [call]})
        case Finish():
            counts = {"prompt_eval_count": step.prompt_tokens, "eval_count": step.completion_tokens}
            return _told({"content": ""}, done=True, done_reason=step.reason, **counts)


def _told(message: dict[str, Any], *, done: bool = False, **more: Any) -> bytes:
    return orjson.dumps({"message": message, "done": done, **more}) + b"\n"


def _error(status: int, kind: str) -> Response:
    body = {"error": {"code": status, "message": "scripted", "type": kind}}
    return Response(orjson.dumps(body), status, media_type="application/json")
