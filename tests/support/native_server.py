"""A native Horde on a real socket, in the test's own event loop, and callers of it."""

import asyncio
import contextlib
import io
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

import aiohttp
import orjson
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatGuarantee, ChatWorkerLimits
from horde_sdk.worker.chat_declaration import (
    ChatFinishReason,
    ChatImageTransport,
    ChatUsage,
    ChatWorkerDeclaration,
    build_chat_reply_submit,
)
from pydantic import SecretStr

from horde.native.app import create_app
from horde.native.db.engine import Pool, create_pool
from horde.native.settings import NativeSettings
from horde.native.users import ensure_user
from horde.server import ServeOptions, bind_socket, serve

__all__ = ["Answer", "Caller", "NativeServer", "declaration", "pop_body", "running_native", "seeing", "submit_body"]

MODEL: Final = "test/model-a"
"""The model that bodies and declarations name when a test does not."""

_CALL_SECONDS: Final = 30.0

_QUICK: Final = {"sweep_seconds": 0.05, "snapshot_seconds": 0.05, "relook_seconds": 0.5, "image_store": ""}
"""Settings of a Horde whose background work a test need not wait for, without a store for images."""

_AGEING: Final = (
    "UPDATE chat_requests SET created_at = created_at - $1::interval, expires_at = expires_at - $1::interval",
    "UPDATE chat_jobs SET popped_at = popped_at - $1::interval, deadline_at = deadline_at - $1::interval",
    "UPDATE workers SET last_seen_at = last_seen_at - $1::interval",
    "UPDATE chat_images SET created_at = created_at - $1::interval",
    "UPDATE chat_operations SET created_at = created_at - $1::interval",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        body: The decoded JSON.
        headers: The headers, names in lower case.
    """

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def rc(self) -> str | None:
        """The return code of a refusal."""
        return self.body.get("rc") if isinstance(self.body, dict) else None


class Caller:
    """Calls the Horde with one key.

    Args:
        session: The HTTP client.
        api_url: The Horde's address, ending in ``/api``.
        api_key: The key, or None for the anonymous user.
    """

    def __init__(self, session: aiohttp.ClientSession, api_url: str, api_key: str | None) -> None:
        self._session = session
        self._api_url = api_url
        self.api_key = api_key

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Make a call; ``path`` follows ``/api``, ``body`` is sent as JSON unless it is bytes."""
        sent = {"Content-Type": "application/json", **headers}
        if self.api_key is not None:
            sent["apikey"] = self.api_key
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        stream = None if data is None else io.BytesIO(data)
        async with self._session.request(method, self._api_url + path, data=stream, headers=sent) as response:
            raw = await response.read()
            lowered = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, orjson.loads(raw) if raw else None, lowered)

    async def submit(self, **body: object) -> Answer:
        """Submit a request; :func:`submit_body` fills in what is left out."""
        return await self.call("POST", "/v2/generate/chat", submit_body(**body))

    async def submit_id(self, **body: object) -> str:
        """Submit a request that has to be taken in, and return its id."""
        answer = await self.submit(**body)
        assert answer.status == 202, answer
        return str(answer.body["id"])

    async def status(self, request_id: str) -> dict[str, Any]:
        """Return the status of a request that has to be there."""
        answer = await self.call("GET", f"/v2/generate/chat/status/{request_id}")
        assert answer.status == 200, answer
        return dict(answer.body)

    async def cancel(self, request_id: str) -> Answer:
        """Cancel a request."""
        return await self.call("DELETE", f"/v2/generate/chat/status/{request_id}")

    async def cancel_operation(self, key: object) -> Answer:
        """Cancel by operation key."""
        return await self.call("DELETE", f"/v2/generate/chat/operation/{key}")

    async def pop(self, **body: object) -> Answer:
        """Pop as a worker; :func:`pop_body` fills in what is left out."""
        return await self.call("POST", "/v2/generate/text/pop", pop_body(**body))

    async def pop_job(self, **body: object) -> dict[str, Any]:
        """Pop a job that has to be there."""
        answer = await self.pop(**body)
        assert answer.status == 200, answer
        assert answer.body["id"] is not None, answer
        return dict(answer.body)

    async def come_online(self, **body: object) -> None:
        """Declare a worker by a pop that finds nothing."""
        answer = await self.pop(**body)
        assert answer.status == 200, answer
        assert answer.body["id"] is None, answer

    async def progress(self, job_id: str, seq: int | None = None, text: str = "", **body: object) -> Answer:
        """Post progress; a heartbeat without ``seq``."""
        sent: dict[str, object] = {"id": job_id, **body}
        if seq is not None:
            sent |= {"seq": seq, "text": text}
        return await self.call("POST", "/v2/generate/chat/progress", sent)

    async def reply(self, job: Mapping[str, Any], content: str = "A reply.", **options: Any) -> Answer:
        """Submit a reply for a popped job."""
        message = options.pop("message", {"content": content})
        finish = options.pop("finish_reason", ChatFinishReason.STOP)
        usage = options.pop("usage", ChatUsage(prompt_tokens=3, completion_tokens=2))
        body = build_chat_reply_submit(job["id"], job["model"], message, finish, usage, **options)
        return await self.call("POST", "/v2/generate/text/submit", body)

    async def fault(self, job: Mapping[str, Any], reason: str = "generation_error") -> Answer:
        """Submit a fault for a popped job."""
        body = {"id": job["id"], "state": "faulted", "model_id": job["model"], "fault_reason": reason}
        return await self.call("POST", "/v2/generate/text/submit", body)


def declaration(model: str = MODEL, *, without: object = (), **limits: Any) -> ChatWorkerDeclaration:
    """Return the declaration of a worker that can do everything but images.

    Args:
        model: The model it serves.
        without: Features and guarantees to leave out.
        **limits: Fields of ``ChatWorkerLimits`` that differ from 8,192 and 2,048 tokens.
    """
    left_out = set(without) if isinstance(without, list | tuple | set) else {without}
    features = {*ChatFeature, *ChatGuarantee} - {ChatFeature.VISION} - left_out
    bounds = ChatWorkerLimits(**{"max_context_length": 8192, "max_length": 2048, **limits})
    return ChatWorkerDeclaration(model_id=model, features=frozenset(features), limits=bounds)


def seeing(*transports: ChatImageTransport, model: str = MODEL, max_length: int = 2048) -> ChatWorkerDeclaration:
    """Return the declaration of a worker that can do everything, and receives images in these ways."""
    features = frozenset({*ChatFeature, *ChatGuarantee})
    bounds = ChatWorkerLimits(max_context_length=8192, max_length=max_length)
    return ChatWorkerDeclaration(
        model_id=model, features=features, limits=bounds, image_transports=frozenset(transports)
    )


def pop_body(**changes: object) -> dict[str, Any]:
    """Return the body of a pop: of one thread, that does not wait, of a worker that can do everything but images."""
    declared = changes.pop("declared", None)
    model = str(changes.pop("model", MODEL))
    worker = declared if isinstance(declared, ChatWorkerDeclaration) else declaration(model)
    return {
        "name": "worker-1",
        "models": [worker.model_id],
        "threads": 1,
        "bridge_agent": "test:1:none",
        "max_length": 2048,
        "max_context_length": 8192,
        **worker.to_pop_fields(),
        **changes,
    }


def submit_body(**changes: object) -> dict[str, Any]:
    """Return the body of a submit: one short question to :data:`MODEL`."""
    return {"messages": [{"role": "user", "content": "Hello"}], "models": [MODEL], **changes}


@dataclass(frozen=True, slots=True)
class NativeServer:
    """A running Horde.

    Attributes:
        base_url: Its address without a path.
        pool: Connections to its database, for tests to look and to make time pass.
        session: The HTTP client of its callers.
        stopping: Tells it to stop.
    """

    base_url: str
    pool: Pool
    session: aiohttp.ClientSession
    stopping: asyncio.Event

    @property
    def api_url(self) -> str:
        """Its address, ending in ``/api``."""
        return self.base_url + "/api"

    def caller(self, api_key: str | None = None) -> Caller:
        """Return a caller with this key, or an anonymous one."""
        return Caller(self.session, self.api_url, api_key)

    async def user(self, name: str, *, kudos: int = 0, trusted: bool = False, moderator: bool = False) -> Caller:
        """Make a user and return a caller with its key."""
        key = secrets.token_urlsafe(16)
        await ensure_user(self.pool, name, key, kudos=kudos, trusted=trusted, moderator=moderator)
        return self.caller(key)

    async def make_time_pass(self, seconds: float) -> None:
        """Make everything in the database so much older."""
        async with self.pool.acquire() as connection, connection.transaction():
            for statement in _AGEING:
                await connection.execute(statement.replace("$1::interval", f"interval '{float(seconds)} seconds'"))

    async def worker_id(self, name: str = "worker-1") -> UUID:
        """Return the id of a worker that has popped."""
        found = await self.pool.fetchval("SELECT id FROM workers WHERE name = $1", name)
        assert isinstance(found, UUID)
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.session.close()
        await self.pool.close()


@contextlib.asynccontextmanager
async def running_native(
    database_url: str, redis_url: str | None = None, **settings: object
) -> AsyncIterator[NativeServer]:
    """Serve a Horde on a free port until the context ends.

    Args:
        database_url: A migrated database.
        redis_url: Redis or Valkey, or None for a Horde without signals and live text.
        **settings: Fields of ``NativeSettings`` that differ from quick ones for tests.
    """
    chosen = NativeSettings(
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url) if redis_url else None,
        **{**_QUICK, **settings},  # type: ignore[arg-type] # fields of several types
    )
    listener = bind_socket("127.0.0.1", 0)
    listener.listen(256)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stopping = asyncio.Event()
    app = create_app(chosen, stopping=stopping)
    pool = await create_pool(database_url, size=4, application_name="test")
    timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
    async with NativeServer(url, pool, session, stopping) as server:
        task = asyncio.create_task(
            serve(app, listener, stopping=stopping, options=ServeOptions(drain_seconds=1.0)), name="test - native Horde"
        )
        try:
            yield server
        finally:
            stopping.set()
            await task
