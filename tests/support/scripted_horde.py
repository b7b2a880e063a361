"""A Horde that answers what a test tells it to: the orders that a real one cannot be made to produce.

It speaks the native routes over real HTTP. Each route has a list of answers played in turn, the last one again and
again; every call is recorded.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

__all__ = ["Answer", "Call", "ScriptedHorde", "chat_model", "generation", "scripted_horde", "status"]

MODEL = "test/model-a"


@dataclass(slots=True)
class Answer:
    """One answer.

    Attributes:
        status: HTTP status.
        body: JSON body, or bytes sent as they are.
        headers: Further headers.
        drop: Close the connection in place of answering.
        held: Answer only when this is set.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False
    held: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call that came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


def generation(content: str | None = "Hello there.", **more: Any) -> dict[str, Any]:
    """Return a finished generation; keys of the message are ``tool_calls`` and ``reasoning_content``."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    for key in ("tool_calls", "reasoning_content"):
        if key in more:
            message[key] = more.pop(key)
    return {
        "id": "11111111-1111-4111-8111-111111111111",
        "message": message,
        "finish_reason": "stop",
        "native_finish_reason": "eos",
        "model": MODEL,
        "worker_id": "22222222-2222-4222-8222-222222222222",
        "worker_name": "A worker",
        "kudos": 3.1,
        "queue_wait_seconds": 1.2,
        "prompt_tokens": 12,
        "completion_tokens": 4,
    } | more


def status(state: str = "queued", reply: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a status body: ``queued``, ``processing``, ``replied``, ``faulted``, ``cancelled``, ``impossible``."""
    body: dict[str, Any] = {
        "done": False, "faulted": False, "is_possible": True, "waiting": 0, "processing": 0, "finished": 0,
        "restarted": 0, "queue_position": 0, "wait_time": 0, "kudos": 1.0, "eligible_workers": 1,
        "eligible_worker_threads": 1, "impossible_reason": None, "context_adjustments": None, "fault": None,
        "generations": [],
    }  # fmt: skip
    by_state: dict[str, dict[str, Any]] = {
        "queued": {"waiting": 1, "queue_position": 3, "wait_time": 42},
        "processing": {"processing": 1},
        "replied": {"done": True, "finished": 1, "generations": [dict(reply or generation())]},
        "faulted": {"done": True, "faulted": True},
        "cancelled": {"done": True},
        "impossible": {"waiting": 1, "is_possible": False, "eligible_workers": 0, "eligible_worker_threads": 0},
    }
    return body | by_state[state] | more


def chat_model(name: str = MODEL, **chat: Any) -> dict[str, Any]:
    """Return an entry of the native model list with an online chat worker."""
    known = {"workers": 3, "threads": 6, "max_context_length": 8192, "max_length": 1024, "features": ["tools", "seed"]}
    return {
        "name": name, "type": "text", "count": 3, "jobs": 2, "queued": 640, "eta": 7, "performance": 42.0,
        "chat": known | chat,
    }  # fmt: skip


class ScriptedHorde:
    """The script and the record.

    Attributes:
        url: Base URL, up to before ``/v2``.
        submits: Answers to submits; None is 202 with a fresh id, or 200 for a key that came before.
        statuses: Answers to status reads.
        cancels: Answers to cancels of a request.
        operation_cancels: Answers to cancels by operation key.
        models: Answers to the model list.
        calls: Every call, in order.
    """

    def __init__(self) -> None:
        self.url = ""
        self.submits: list[Answer | None] = [None]
        self.statuses: list[Answer] = [Answer(body=status("replied"))]
        self.cancels: list[Answer] = [Answer(body=status("cancelled"))]
        self.operation_cancels: list[Answer] = [Answer(body={"tombstone": True})]
        self.models: list[Answer] = [Answer(body=[chat_model()])]
        self.calls: list[Call] = []
        self.ids: dict[str, str] = {}
        self._played: dict[str, int] = {}
        self._queued: frozenset[str] = frozenset()

    def play(self, *bodies: Mapping[str, Any]) -> None:
        """Let the status reads answer these bodies in turn."""
        self.statuses = [Answer(body=body) for body in bodies]

    def restart(self, statuses: list[Answer]) -> None:
        """Play these answers to status reads from the first one."""
        self.statuses = statuses
        self._played.pop("GET", None)

    def hold_requests(self, ids: Iterable[str]) -> None:
        """Let these requests go on waiting, whatever the script says of others; none lets them go."""
        self._queued = frozenset(ids)

    def of(self, method: str, part: str = "") -> list[Call]:
        """Return the calls of a method whose path holds a part."""
        return [call for call in self.calls if call.method == method and part in call.path]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies submitted."""
        return [call.body for call in self.of("POST", "/generate/chat")]

    @property
    def cancelled(self) -> list[str]:
        """Ids of the requests cancelled."""
        return [call.path.rsplit("/", 1)[-1] for call in self.of("DELETE", "/status/")]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one call from the script."""
        data = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.calls.append(Call(request.method, request.path, headers, orjson.loads(data) if data else None))
        answer = self._next_answer(request)
        if answer is None:
            return self._queue(self.calls[-1].body["operation_key"])
        if answer.held is not None:
            await answer.held.wait()
        if answer.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        body = answer.body if isinstance(answer.body, bytes) else orjson.dumps(answer.body)
        return web.Response(
            status=answer.status, body=body, headers=dict(answer.headers), content_type="application/json"
        )

    def _next_answer(self, request: web.Request) -> Answer | None:
        path, method = request.path, request.method
        if path.endswith("/generate/chat"):
            return self._turn("submit", self.submits)
        if "/operation/" in path:
            return self._turn("operation", self.operation_cancels)
        if "/generate/chat/status/" in path and method == "GET" and path.rsplit("/", 1)[-1] in self._queued:
            return Answer(body=status("queued"))
        if "/generate/chat/status/" in path:
            return self._turn(method, self.cancels if method == "DELETE" else self.statuses)
        if path.endswith("/status/models"):
            return self._turn("models", self.models)
        return Answer(404, {"message": "No such route.", "rc": "NotFound"})

    def _turn[T](self, name: str, answers: list[T]) -> T:
        index = self._played.get(name, 0)
        self._played[name] = index + 1
        return answers[min(index, len(answers) - 1)]

    def _queue(self, operation_key: str) -> web.Response:
        known = operation_key in self.ids
        request_id = self.ids.setdefault(operation_key, str(uuid.uuid4()))
        return web.json_response({"id": request_id, "kudos": 1.0}, status=200 if known else 202)


@asynccontextmanager
async def scripted_horde() -> AsyncIterator[ScriptedHorde]:
    """Serve a scripted Horde on a free port of the loopback address."""
    horde = ScriptedHorde()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", horde.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    horde.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api"
    try:
        yield horde
    finally:
        await runner.cleanup()
