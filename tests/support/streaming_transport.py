"""An in-process client of an ASGI application, full duplex.

The usual in-process transport of an HTTP client buffers a response whole and shows nothing of a stream.
Here:

- what the application sends can be read part by part while it runs, and a part is only taken when the test reads it;
- the client can leave at any time, and the application is told as a server would tell it;
- the application runs in a task of its own; an exception it raises is raised where the test reads.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from starlette.types import ASGIApp, Message

__all__ = ["Exchange", "InProcessClient", "in_process_client"]

_LIMIT_SECONDS = 30.0
"""Bound of every wait for the application."""


class Exchange:
    """One request and its response.

    Args:
        app: The application.
        scope: The request.
        body: Parts of the request's body.
        buffered_parts: Parts the application may send ahead of the reader.
    """

    def __init__(
        self, app: ASGIApp, scope: MutableMapping[str, Any], body: list[bytes], *, buffered_parts: int = 1000
    ) -> None:
        self._body = body
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[Message] = asyncio.Queue(buffered_parts)
        self._start: Message | None = None
        self._ended = False
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))
        self._task.set_name("test - application")

    async def _receive(self) -> Message:
        if self._body:
            part = self._body.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._body)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if not self._gone.is_set():
            await self._parts.put(message)

    async def _next(self) -> Message | None:
        """Return the next message, or None when the application has ended."""
        getter = asyncio.ensure_future(self._parts.get())
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                either: set[asyncio.Future[Any]] = {getter, self._task}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if getter.done():
                return getter.result()
            if not self._parts.empty():
                return self._parts.get_nowait()
            self._task.result()
            return None
        finally:
            getter.cancel()

    async def start(self) -> Message:
        """Return the response's start, waiting for it."""
        if self._start is None:
            self._start = await self._next()
            assert self._start is not None, "the application ended without a response"
        return self._start

    async def status(self) -> int:
        """Return the response's status."""
        return int((await self.start())["status"])

    async def headers(self) -> dict[str, str]:
        """Return the response's headers, names in lower case."""
        return {name.decode().lower(): value.decode("latin-1") for name, value in (await self.start())["headers"]}

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body part by part, until it ends."""
        await self.start()
        while not self._ended:
            message = await self._next()
            if message is None:
                return
            self._ended = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events, comments included, without their blank lines."""
        rest = ""
        async for part in self.parts():
            *whole, rest = (rest + part.decode()).split("\n\n")
            for event in whole:
                yield event
        assert not rest, f"the stream ended inside an event: {rest!r}"

    async def body(self) -> bytes:
        """Return the whole body."""
        return b"".join([part async for part in self.parts()])

    async def json(self) -> Any:
        """Return the whole body as JSON."""
        return orjson.loads(await self.body())

    async def chunks(self) -> list[Any]:
        """Return the payloads of the whole stream's events as JSON, ``[DONE]`` as text, comments left out."""
        payloads = [event.removeprefix("data: ") async for event in self.events() if event.startswith("data: ")]
        return [payload if payload == "[DONE]" else orjson.loads(payload) for payload in payloads]

    async def leave(self) -> None:
        """Close the connection, as a client that goes away."""
        self._gone.set()
        while not self._parts.empty():
            self._parts.get_nowait()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the application has ended with this request."""
        async with asyncio.timeout(_LIMIT_SECONDS):
            await asyncio.wait({self._task})
        self._task.result()

    async def close(self) -> None:
        """End the exchange whatever its state."""
        self._gone.set()
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})


class InProcessClient:
    """Sends requests to an application whose lifespan is running.

    Args:
        app: The application.
        state: What its lifespan yielded.
    """

    def __init__(self, app: ASGIApp, state: Mapping[str, Any]) -> None:
        self.app = app
        self.state = dict(state)
        self._exchanges: list[Exchange] = []

    def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | list[bytes] | None = None,
        headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
        buffered_parts: int = 1000,
    ) -> Exchange:
        """Start a request and return at once.

        Args:
            method: HTTP method.
            url: Path and query.
            json: Body as JSON.
            content: Body as bytes, or as parts of it.
            headers: Request headers.
            buffered_parts: Parts of the response the application may send ahead of the reader.
        """
        parts = urlsplit(url)
        body = orjson.dumps(json) if json is not None else content if content is not None else b""
        pairs = list(headers.items()) if isinstance(headers, Mapping) else headers or []
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "state": dict(self.state),
        }
        content_parts = [body] if isinstance(body, bytes) else list(body)
        exchange = Exchange(self.app, scope, content_parts, buffered_parts=buffered_parts)
        self._exchanges.append(exchange)
        return exchange

    def chat(self, body: Mapping[str, Any], **more: Any) -> Exchange:
        """Start a chat request."""
        return self.request("POST", "/v1/chat/completions", json=body, **more)

    async def close(self) -> None:
        """End every exchange."""
        for exchange in self._exchanges:
            await exchange.close()


@asynccontextmanager
async def in_process_client(app: ASGIApp) -> AsyncIterator[InProcessClient]:
    """Run an application's lifespan around a client of it."""
    state: dict[str, Any] = {}
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    lifespan = asyncio.ensure_future(app(scope, to_app.get, from_app.put))
    lifespan.set_name("test - lifespan")
    await to_app.put({"type": "lifespan.startup"})
    await _expect(from_app, lifespan, "lifespan.startup.complete")
    client = InProcessClient(app, state)
    try:
        yield client
    finally:
        await client.close()
        await to_app.put({"type": "lifespan.shutdown"})
        await _expect(from_app, lifespan, "lifespan.shutdown.complete")
        await lifespan


async def _expect(messages: "asyncio.Queue[Message]", lifespan: "asyncio.Future[None]", kind: str) -> None:
    getter = asyncio.ensure_future(messages.get())
    either: set[asyncio.Future[Any]] = {getter, lifespan}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=_LIMIT_SECONDS)
    if not getter.done():
        getter.cancel()
        lifespan.result()
        raise AssertionError(f"the application did not answer {kind}")
    assert getter.result()["type"] == kind, getter.result()
