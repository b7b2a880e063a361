"""A Horde as a worker sees it: pop, progress and submit as the native contract has them, and nothing behind them.

* Jobs put into :attr:`ScriptedPops.jobs` are given out in order, one to a pop; a held pop waits for the next one.
* A pop that is sent again under an id that was given a job is given the same job.
* Every call is recorded. A progress post of a cancelled or submitted job is answered ``cancelled``; a second submit of
  a job is 409 ``DuplicateGen``.
* :attr:`ScriptedPops.mishaps` are used up one a call, before the call is looked at or after it took effect.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import orjson
from horde_sdk.generation_parameters.text.chat_limits import CHAT_SAMPLING_DEFAULTS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

__all__ = ["Mishap", "ScriptedPops", "chat_job"]

_numbers = itertools.count(1)

_LOOK_SECONDS = 0.05
"""How often a held pop looks whether its worker is still there."""


class Mishap(Enum):
    """What goes wrong with a call."""

    REFUSED_EARLY = auto()
    """503 with ``rc``: nothing happened."""
    LOST_BEFORE = auto()
    """The connection closes; the call had no effect."""
    LOST_AFTER = auto()
    """The connection closes; the call took effect."""
    NOT_JSON = auto()
    """200 with a page that is no JSON; the call had no effect."""


def chat_job(
    content: str = "Hello",
    *,
    model: str = "SmolLM2-135M-Instruct",
    max_length: int = 64,
    interval_seconds: float = 1.0,
    lease_seconds: float = 30.0,
    job_id: str | None = None,
    **payload: Any,
) -> dict[str, Any]:
    """Return a pop's answer with a job; ``messages`` and samplings can be given as keys of the payload."""
    return {
        "id": job_id or f"job-{next(_numbers)}",
        "model": model,
        "chat": True,
        "ttl": 120,
        "progress": {"interval_seconds": interval_seconds, "lease_seconds": lease_seconds},
        "payload": {
            "messages": [{"role": "user", "content": content}],
            "max_length": max_length,
            "max_context_length": 3072,
            **CHAT_SAMPLING_DEFAULTS,
            **payload,
        },
    }


@dataclass(slots=True)
class ScriptedPops:
    """The scripted Horde: an ASGI application with its records.

    Attributes:
        jobs: Pop answers to give out.
        pops: Bodies of the pops that arrived, in order.
        posts: Bodies of the progress posts that took effect, in order.
        submits: Bodies of the submits that took effect, in order.
        headers: Headers of the last call.
        cancelled: Ids whose posts are answered ``cancelled``.
        refusals: Answers to submits instead of taking them, used up in order: status and body.
        mishaps: What goes wrong, by route name (``pop``, ``progress``, ``submit``).
        pictures: Pictures that it hands out, by name, under ``/pictures/``; None redirects elsewhere.
        picture_headers: Headers of the calls for them, in order.
        pop_refusals: Answers to pops instead of a job, used up in order: status and body.
    """

    jobs: deque[dict[str, Any]] = field(default_factory=deque)
    pops: list[dict[str, Any]] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)
    submits: list[dict[str, Any]] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    refusals: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    mishaps: dict[str, deque[Mishap]] = field(
        default_factory=lambda: {"pop": deque(), "progress": deque(), "submit": deque()}
    )
    pop_refusals: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    pictures: dict[str, bytes | None] = field(default_factory=dict)
    picture_headers: list[Mapping[str, str]] = field(default_factory=list)
    _given: dict[str, dict[str, Any]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes = [
            Route("/api/v2/generate/text/pop", self._pop, methods=["POST"]),
            Route("/api/v2/generate/chat/progress", self._progress, methods=["POST"]),
            Route("/api/v2/generate/text/submit", self._submit, methods=["POST"]),
            Route("/pictures/{name}", self._picture),
        ]
        await Starlette(routes=routes)(scope, receive, send)

    def give(self, *jobs: dict[str, Any]) -> None:
        """Put jobs into the queue."""
        self.jobs.extend(jobs)
        self._changed.set()

    def posts_of(self, job_id: str) -> list[dict[str, Any]]:
        """Return the posts with text of one job."""
        return [post for post in self.posts if post["id"] == job_id and "seq" in post]

    def posted_text(self, job_id: str) -> str:
        """Return the content that was posted for one job."""
        return "".join(post["text"] for post in self.posts_of(job_id))

    def submit_of(self, job_id: str) -> dict[str, Any] | None:
        """Return what was submitted for one job, or None."""
        return next((submit for submit in self.submits if submit["id"] == job_id), None)

    async def _pop(self, request: Request) -> Response:
        body = await self._read(request)
        self.pops.append(body)
        if (early := self._early("pop")) is not None:
            return early
        if self.pop_refusals:
            status, refusal = self.pop_refusals.popleft()
            return _answer(refusal, status)
        pop_id = body.get("pop_id", "")
        if pop_id not in self._given and body.get("chat_jobs"):
            job = await self._wait_for_job(request, float(body.get("wait_seconds", 0)))
            if job is not None:
                self._given[pop_id] = job
        return self._late("pop") or _answer(self._given.get(pop_id, {"id": None, "skipped": {}}))

    async def _wait_for_job(self, request: Request, seconds: float) -> dict[str, Any] | None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.jobs and asyncio.get_running_loop().time() < deadline:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)
            if await request.is_disconnected():
                return None
        return self.jobs.popleft() if self.jobs else None

    async def _progress(self, request: Request) -> Response:
        body = await self._read(request)
        if (early := self._early("progress")) is not None:
            return early
        job_id = body["id"]
        over = job_id in self.cancelled or self.submit_of(job_id) is not None
        if not over:
            self.posts.append(body)
        return self._late("progress") or _answer({"cancelled": over})

    async def _submit(self, request: Request) -> Response:
        body = await self._read(request)
        if (early := self._early("submit")) is not None:
            return early
        if self.refusals:
            status, refusal = self.refusals.popleft()
            return _answer(refusal, status)
        if self.submit_of(body["id"]) is not None:
            return _answer({"message": "This job was submitted before.", "rc": "DuplicateGen"}, 409)
        self.submits.append(body)
        return self._late("submit") or _answer({"reward": 1.5})

    async def _picture(self, request: Request) -> Response:
        self.picture_headers.append(dict(request.headers))
        name = request.path_params["name"]
        if name not in self.pictures:
            return _answer({"message": "There is no such picture.", "rc": "RequestNotFound"}, 404)
        data = self.pictures[name]
        if data is None:
            return Response(status_code=302, headers={"location": "/pictures/other"})
        return Response(data, media_type="image/jpeg")

    async def _read(self, request: Request) -> dict[str, Any]:
        self.headers = dict(request.headers)
        body = orjson.loads(await request.body())
        assert isinstance(body, dict)
        return body

    def _early(self, route: str) -> Response | None:
        """Return what a mishap before the call takes effect answers."""
        waiting = self.mishaps[route]
        if not waiting or waiting[0] is Mishap.LOST_AFTER:
            return None
        match waiting.popleft():
            case Mishap.REFUSED_EARLY:
                return _answer({"message": "Not now.", "rc": "MaintenanceMode"}, 503)
            case Mishap.NOT_JSON:
                return Response("<html>Log in to the hotel's network</html>", media_type="text/html")
            case _:
                return _cut()

    def _late(self, route: str) -> Response | None:
        """Return what a mishap after the call took effect answers."""
        waiting = self.mishaps[route]
        if not waiting or waiting[0] is not Mishap.LOST_AFTER:
            return None
        waiting.popleft()
        return _cut()


def _answer(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def _cut() -> Response:
    """Return an answer that ends, with its connection, before its announced length."""
    return Response(b"{", headers={"content-length": "64"})
