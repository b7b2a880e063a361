"""A Horde in memory that keeps the truth, behind the HTTP session of the front's client and behind a model Redis.

It obeys the native contract: one request for each operation key, statuses that follow the request's state, tombstones,
deltas and signals. What a network does to that is the script's: each call has a fate, each signal may be lost, doubled
or late, each delta may be lost or doubled.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import orjson

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, chat_stream_key
from tests.support.model_redis import ModelRedis
from tests.support.scripted_horde import generation, status

__all__ = ["CALL_FATES", "CallFate", "HordeRequest", "ModelHorde", "NativeCall"]

type CallFate = Literal[
    "ok", "slow", "not_connected", "answer_lost", "silent", "unwell", "unwell_after", "later", "malformed", "refused"
]
CALL_FATES: tuple[CallFate, ...] = (
    "ok", "slow", "not_connected", "answer_lost", "silent", "unwell", "unwell_after", "later", "malformed", "refused",
)  # fmt: skip
"""What may become of a call.

``slow``: carried out at once and answered after 3 s. ``not_connected``, ``unwell``, ``later``: not carried out.
``answer_lost``, ``silent``, ``unwell_after``, ``malformed``: carried out, and the answer does not tell. ``refused``: a
final refusal.
"""
_NOT_CARRIED_OUT = frozenset({"not_connected", "unwell", "later", "refused"})


@dataclass(slots=True)
class HordeRequest:
    """One request as the Horde knows it.

    Attributes:
        state: A state of the scripted Horde's ``status``, or ``forgotten``.
        attempt: Number of the present attempt.
        posts: Texts posted in it.
        told: Number of its last post.
        attempts: Texts posted in each attempt, with the reasoning.
        reply: The generation.
        ever: Every state it was in.
    """

    id: str
    operation_key: str
    body: bytes
    state: str = "queued"
    attempt: int = 0
    posts: list[str] = field(default_factory=list)
    told: int = 0
    attempts: dict[int, tuple[str, str]] = field(default_factory=dict)
    possible: bool = True
    gap: bool = False
    reply: dict[str, Any] | None = None
    ever: set[str] = field(default_factory=lambda: {"queued"})

    @property
    def gen(self) -> str:
        return f"gen-{self.attempt}"

    @property
    def live(self) -> bool:
        return self.state in {"queued", "processing"}

    def status(self) -> dict[str, Any]:
        if self.state == "queued" and self.gap:
            reason = {"kind": "declaration_gap", "missing_declarations": ["tools"], "exceeded_limits": []}
            return status("impossible", impossible_reason=reason)
        if self.state == "queued" and not self.possible:
            return status("impossible")
        return status(self.state, self.reply)


@dataclass(frozen=True, slots=True)
class NativeCall:
    """One call that was made."""

    method: str
    path: str
    body: bytes | None
    at: float
    fate: CallFate


class ModelHorde:
    """The Horde.

    Attributes:
        redis: Where it publishes and writes deltas.
        fates: What becomes of the next calls, by ``POST``, ``GET`` and ``DELETE``; ``ok`` when used up.
        requests: What it holds, by id.
        calls: Every call.
        closed: As an HTTP session has it.
        before_read: Called before each status read; may name its fate.
    """

    def __init__(self, fates: Mapping[str, list[CallFate]] | None = None) -> None:
        self.redis = ModelRedis()
        self.fates = {method: list(given) for method, given in (fates or {}).items()}
        self.requests: dict[str, HordeRequest] = {}
        self.calls: list[NativeCall] = []
        self.tombstones: set[str] = set()
        self.closed = False
        self.before_read: Callable[[HordeRequest], CallFate | None] = lambda _request: None
        self._numbers = itertools.count(1)

    # The HTTP session

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the library's name
        **_more: object,
    ) -> AsyncIterator[SimpleNamespace]:
        """Make a call, with the errors of the HTTP library."""
        fates = self.fates.get(method, [])
        fate = fates.pop(0) if fates else "ok"
        path = url.removeprefix("http://horde/api")
        held = self.requests.get(path.rsplit("/", 1)[-1])
        if method == "GET" and held is not None:
            fate = self.before_read(held) or fate
        self.calls.append(NativeCall(method, path, data, asyncio.get_running_loop().time(), fate))
        async with asyncio.timeout(timeout.total):
            code, headers, body = await self._exchange(method, path, data, fate)
        yield SimpleNamespace(status=code, headers=headers, content=SimpleNamespace(iter_any=lambda: _parts(body)))

    async def _exchange(
        self, method: str, path: str, data: bytes | None, fate: CallFate
    ) -> tuple[int, dict[str, str], bytes]:
        await asyncio.sleep(0.002)
        if fate == "not_connected":
            raise aiohttp.ConnectionTimeoutError
        code, body = (0, {}) if fate in _NOT_CARRIED_OUT else self._carry_out(method, path, data)
        match fate:
            case "slow":
                await asyncio.sleep(3.0)
            case "answer_lost":
                raise aiohttp.ServerDisconnectedError
            case "silent":
                await asyncio.sleep(10_000)
            case "unwell" | "unwell_after":
                return 503, {}, b'{"message": "unwell"}'
            case "later":
                return 503, {"retry-after": "3"}, b'{"message": "maintenance", "rc": "MaintenanceMode"}'
            case "malformed":
                return 200, {}, b'{"done": "perhaps"'
            case "refused":
                return 404, {}, b'{"message": "no such request", "rc": "RequestNotFound"}'
            case _:
                pass
        await asyncio.sleep(0.002)
        return code, {}, orjson.dumps(body)

    def _carry_out(self, method: str, path: str, data: bytes | None) -> tuple[int, Any]:
        name = path.rsplit("/", 1)[-1]
        if method == "POST":
            assert data is not None
            return self._submit(data)
        if "/operation/" in path:
            held = next((each for each in self.requests.values() if each.operation_key == name), None)
            if held is None:
                self.tombstones.add(name)
                return 200, {"tombstone": True}
            return 200, self._cancel(held)
        if "/models" in path:
            return 200, []
        request = self.requests.get(name)
        if request is None or request.state == "forgotten":
            return 404, {"message": "no such request", "rc": "RequestNotFound"}
        return 200, self._cancel(request) if method == "DELETE" else request.status()

    def _submit(self, data: bytes) -> tuple[int, Any]:
        key = orjson.loads(data)["operation_key"]
        if key in self.tombstones:
            return 409, {"message": "cancelled", "rc": "ChatOperationCancelled"}
        held = next((each for each in self.requests.values() if each.operation_key == key), None)
        if held is not None:
            assert held.body == data, "a re-send has another body"
            return 200, {"id": held.id, "kudos": 1.0}
        request = HordeRequest(f"request-{next(self._numbers)}", key, data)
        self.requests[request.id] = request
        return 202, {"id": request.id, "kudos": 1.0}

    def _cancel(self, request: HordeRequest) -> dict[str, Any]:
        if request.live:
            if request.state == "processing":
                self.mark_ended(request, "cancelled")
            self.change(request, "cancelled")
        return request.status()

    # What happens to a request

    def change(self, request: HordeRequest, state: str) -> None:
        """Let a request enter a state."""
        request.state = state
        request.ever.add(state)

    def signal(self, request: HordeRequest, event: str) -> None:
        """Publish a signal."""
        self.redis.publish(orjson.dumps({"id": request.id, "event": event}))
        assert CHAT_SIGNALS_CHANNEL

    def post(self, request: HordeRequest, text: str, reasoning: str, copies: int) -> None:
        """Take a worker's post, and write it as often as told: 0 is a lost entry."""
        request.posts.append(text)
        request.told += 1
        earlier, thought = request.attempts.get(request.attempt, ("", ""))
        request.attempts[request.attempt] = earlier + text, thought + reasoning
        fields = {"gen": request.gen, "seq": str(request.told), "text": text, "reasoning": reasoning}
        for _ in range(copies):
            self._write(request, fields)

    def mark_ended(self, request: HordeRequest, why: str) -> None:
        """Write the ended marker of the present attempt."""
        self._write(request, {"gen": request.gen, "ended": why})

    def finish(self, request: HordeRequest, text: str, reasoning: str) -> None:
        """Make the reply."""
        request.reply = generation(text, id=request.gen, reasoning_content=reasoning or None)
        self.change(request, "replied")

    def _write(self, request: HordeRequest, fields: Mapping[str, str]) -> None:
        flat = [part.encode() for pair in fields.items() for part in pair]
        self.redis.add(chat_stream_key(request.id).encode(), flat)


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    yield body
