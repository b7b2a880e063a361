"""The clients of the front's benchmark: raw connections that send one request after the other, or hold streams open."""

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Final

import httptools
import orjson

from bench.front_stub import STAMP_SECONDS, Kind

__all__ = ["Connection", "Load", "Results", "close_all", "open_streams", "run_requests"]

_STAMP: Final = re.compile(rb"(\d+\.\d{5})\|(\d+\.\d{5})")
_OPENING_AT_ONCE: Final = 64
_HTTP_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for.

    Attributes:
        port: Where, on the loopback address.
        kind: What the request meets.
        streamed: Whether it asks for a stream.
    """

    port: int
    kind: Kind
    streamed: bool

    def request(self) -> bytes:
        """Return the request as it goes out."""
        body = orjson.dumps({
            "model": f"bench/{self.kind.value}",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant who answers in a few sentences."},
                {"role": "user", "content": "What is the tallest mountain of each continent, and who was first on it?"},
            ],
            "max_tokens": 256,
            "temperature": 0.7,
            "stream": self.streamed,
        })  # fmt: skip
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\naccept: */*\r\n"
            "authorization: Bearer bench-key\r\nuser-agent: OpenAI/Python 3.3.1\r\nx-stainless-lang: python\r\n"
            f"x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(slots=True)
class Results:
    """What clients saw. Times are seconds.

    Attributes:
        first: Time to each first text that the Horde did not take itself.
        posts: From a post to its text, each post.
        comments: When each stream's comments came, one list a stream.
        chunks: Events with text.
        done: Requests answered whole: with status 200, and a stream with its end.
        failed: The others.
    """

    first: list[float] = field(default_factory=list)
    posts: list[float] = field(default_factory=list)
    comments: list[list[float]] = field(default_factory=list)
    chunks: int = 0
    done: int = 0
    failed: int = 0


class Connection(asyncio.Protocol):
    """One connection; ``httptools`` calls the ``on_`` methods."""

    def __init__(self, load: Load, results: Results) -> None:
        loop = asyncio.get_running_loop()
        self._request = load.request()
        self._streamed = load.streamed
        self._results = results
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sent = 0.0
        self._first = True
        self._end = b""
        self._comments: list[float] = []
        results.comments.append(self._comments)
        self.opened: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment] # a stream's transport

    def ask(self) -> "asyncio.Future[None]":
        """Send the request; returns what is done at the response's end."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self.opened, self.ended = loop.create_future(), loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._first, self._end = True, b""
        self._sent = time.monotonic()
        self._transport.write(self._request)
        return self.ended

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse."""
        assert self._parser is not None
        self._parser.feed_data(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """Count a response that was cut off."""
        for waiting in (self.opened, self.ended):
            if not waiting.done():
                waiting.cancel()

    def on_headers_complete(self) -> None:
        """The stream is open."""
        self.opened.set_result(None)

    def on_body(self, body: bytes) -> None:
        """Look for text and for comments."""
        now = time.monotonic()
        self._end = body[-20:]
        if body.startswith(b":"):
            self._comments.append(now)
            return
        if not self._streamed:
            return
        self._results.chunks += body.count(b'"content":"')
        for arrived, posted in _STAMP.findall(body):
            on_its_way = (now - float(posted)) % STAMP_SECONDS
            self._results.posts.append(on_its_way)
            if self._first:
                self._first = False
                self._results.first.append(on_its_way + (float(arrived) - self._sent) % STAMP_SECONDS)

    def on_message_complete(self) -> None:
        """Count."""
        assert self._parser is not None
        whole = self._parser.get_status_code() == _HTTP_OK and (not self._streamed or b"[DONE]" in self._end)
        self._results.done += whole
        self._results.failed += not whole
        self.ended.set_result(None)


async def _connect(load: Load, results: Results) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(load, results), "127.0.0.1", load.port)
    return connection


async def run_requests(load: Load, *, count: int, clients: int) -> Results:
    """Send ``count`` requests from as many clients at once, one after the other on a connection each."""
    results = Results()
    left = iter(range(count))

    async def work(number: int) -> None:
        connection = await _connect(load, results)
        await asyncio.sleep(number / clients if load.kind is Kind.PACED else 0)  # Not all at the same moment.
        for _ in left:
            await connection.ask()
        connection.close()

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(work(number))
    return results


async def open_streams(load: Load, results: Results, *, count: int) -> list[Connection]:
    """Open so many streams and return once each has its headers."""
    connections: list[Connection] = []
    turns = asyncio.Semaphore(_OPENING_AT_ONCE)

    async def open_one() -> None:
        async with turns:
            connection = await _connect(load, results)
            connections.append(connection)
            connection.ask()
            await connection.opened

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(open_one())
    return connections


async def close_all(connections: list[Connection]) -> None:
    """Close streams as clients do that leave."""
    for number, connection in enumerate(connections):
        connection.close()
        if number % 100 == 0:
            await asyncio.sleep(0.01)
