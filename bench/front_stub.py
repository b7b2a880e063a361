"""A Horde that answers at once: the native routes as a raw protocol, signals and live text through a real Valkey.

What a request does is chosen by its model's name, ``bench/<kind>``. The same kinds are served directly, as an OpenAI
server, at ``/v1/chat/completions``: what a plain reverse proxy is measured with.
"""

import asyncio
import os
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import hiredis
import httptools
import orjson
import uvloop

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, SignalEvent, chat_stream_key

__all__ = ["CHUNKS", "CHUNK_SECONDS", "KEEPALIVE_SECONDS", "LIVE_POSTS", "STAMP_SECONDS", "Kind"]

CHUNKS: Final = 20
CHUNK_SECONDS: Final = 0.05
LIVE_POSTS: Final = 20
KEEPALIVE_SECONDS: Final = 5.0
STAMP_SECONDS: Final = 1000
"""Where stamps begin anew: they stay short enough not to be cut when a post is spread over chunks."""

START_SECONDS: Final = 0.01
"""From a submit to its worker's start."""

_PIECE = "the crowd of machines serves "
_MODEL = "bench/model"


class Kind(StrEnum):
    """What a request meets."""

    NOW = "now"
    """The first status read shows the reply: two native calls."""
    WHOLE = "whole"
    """The first read shows it queued, a signal follows, the second read shows the reply: three native calls."""
    PACED = "paced"
    """A started signal, then 20 posts, 50 ms apart: three native calls."""
    LIVE = "live"
    """A post a second."""
    WAIT = "wait"
    """It is queued until it is cancelled."""


class Stamps:
    """Text that says when its request arrived and when it was written, on the clock that all processes share."""

    def __init__(self) -> None:
        self.arrived = time.monotonic()

    def next(self) -> str:
        """Return the next post's text."""
        return f"{self.arrived % STAMP_SECONDS:.5f}|{time.monotonic() % STAMP_SECONDS:.5f} {_PIECE}"


class Job:
    """One request: where it stands, and its text so far."""

    __slots__ = ("done", "generation", "id", "kind", "posts", "processing", "reads", "stamps")

    def __init__(self, number: int, kind: Kind) -> None:
        self.id = f"00000000-0000-4000-8000-{number:012d}"
        self.generation = f"00000000-0000-4000-9000-{number:012d}"
        self.kind = kind
        self.reads = 0
        self.processing = False
        self.done = kind is Kind.NOW
        self.stamps = Stamps()
        self.posts: list[str] = []

    def status(self) -> dict[str, Any]:
        """Return its native status."""
        generations = [] if not self.done else [self._generation()]
        return {
            "done": self.done,
            "faulted": False,
            "is_possible": True,
            "waiting": int(not self.done and not self.processing),
            "processing": int(not self.done and self.processing),
            "finished": int(self.done),
            "restarted": 0,
            "queue_position": 0 if self.done or self.processing else 7,
            "wait_time": 0 if self.done or self.processing else 42,
            "kudos": 24.4,
            "eligible_workers": 2,
            "eligible_worker_threads": 5,
            "impossible_reason": None,
            "context_adjustments": None,
            "fault": None,
            "generations": generations,
        }

    def _generation(self) -> dict[str, Any]:
        return {
            "id": self.generation,
            "message": {"role": "assistant", "content": "".join(self.posts) or _PIECE * CHUNKS},
            "finish_reason": "stop",
            "native_finish_reason": "eos",
            "model": _MODEL,
            "worker_id": "00000000-0000-4000-a000-000000000000",
            "worker_name": "bench",
            "kudos": 3.1,
            "queue_wait_seconds": 1.2,
            "prompt_tokens": 12,
            "completion_tokens": 100,
            "reasoning_tokens": 0,
        }


class Redis:
    """Writes commands to Valkey without waiting for their answers."""

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._writer: asyncio.StreamWriter | None = None
        self._discarding: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect and log in."""
        reader, self._writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        self._discarding = asyncio.create_task(self._discard(reader), name="stub - Valkey's answers")
        self.send("AUTH", self._url.password or "")

    def send(self, *parts: str | int) -> None:
        """Send one command."""
        assert self._writer is not None
        self._writer.write(hiredis.pack_command(parts))  # type: ignore[arg-type] # its stub says a tuple of one

    @staticmethod
    async def _discard(reader: asyncio.StreamReader) -> None:
        while await reader.read(2**16):
            pass


class Horde:
    """All requests of the stub."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.jobs: dict[str, Job] = {}
        self._count = 0

    def submit(self, kind: Kind) -> Job:
        """Queue a request and let its life begin."""
        self._count += 1
        job = Job(self._count, kind)
        self.jobs[job.id] = job
        if kind in {Kind.PACED, Kind.LIVE}:
            asyncio.get_running_loop().call_later(START_SECONDS, self._start, job)
        return job

    def read(self, job: Job) -> bytes:
        """Return a request's status; the first read of one that waits for it lets it finish."""
        job.reads += 1
        answer = orjson.dumps(job.status())
        if job.done:
            self.jobs.pop(job.id, None)
        elif job.kind is Kind.WHOLE and job.reads == 1:
            self._finish(job)
        return answer

    def _start(self, job: Job) -> None:
        job.processing = True
        self._signal(job, SignalEvent.STARTED)
        asyncio.get_running_loop().call_later(CHUNK_SECONDS, self._post, job)

    def _post(self, job: Job) -> None:
        if job.id not in self.jobs:
            return  # Cancelled.
        paced = job.kind is Kind.PACED
        if len(job.posts) == (CHUNKS if paced else LIVE_POSTS):
            self._finish(job)
            return
        text = job.stamps.next()
        job.posts.append(text)
        key = chat_stream_key(job.id)
        entry = ("gen", job.generation, "seq", len(job.posts), "text", text, "worker", "bench", "model", _MODEL)
        self.redis.send("XADD", key, "MAXLEN", 4096, "*", *entry)
        self.redis.send("EXPIRE", key, 120)
        asyncio.get_running_loop().call_later(CHUNK_SECONDS if paced else 1.0, self._post, job)

    def _finish(self, job: Job) -> None:
        job.done = True
        self._signal(job, SignalEvent.FINISHED)

    def _signal(self, job: Job, event: SignalEvent) -> None:
        message = orjson.dumps({"id": job.id, "event": event.value}).decode()
        self.redis.send("PUBLISH", CHAT_SIGNALS_CHANNEL, message)


def chunk(text: str) -> bytes:
    """Return one OpenAI chunk as a part of a chunked body, of about the size of the front's."""
    event = {
        "id": "chatcmpl-00000000-0000-4000-8000-000000000000",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": _MODEL,
        "system_fingerprint": "fp_0000000000",
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
    }
    return part(b"data: " + orjson.dumps(event) + b"\n\n")


def part(data: bytes) -> bytes:
    """Return data as a part of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response(status: bytes, body: bytes) -> bytes:
    """Return a whole JSON response."""
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = part(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection; ``httptools`` calls the ``on_`` methods."""

    def __init__(self, horde: Horde) -> None:
        self._horde = horde
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment] # a stream's transport

    def connection_lost(self, _error: Exception | None) -> None:
        """Drop the transport: what is scheduled for it stops."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._body = b""

    def on_url(self, url: bytes) -> None:
        """Note the path."""
        self._url = url

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer."""
        assert self._transport is not None
        if self._url.startswith(b"/v1/chat"):
            self._serve_directly(self._transport)
        else:
            self._transport.write(self._answer(self._parser.get_method()))

    def _answer(self, method: bytes) -> bytes:
        path = self._url.decode()
        if method == b"POST" and path == "/api/v2/generate/chat":
            job = self._horde.submit(_kind(self._body, "models"))
            return response(b"202 Accepted", orjson.dumps({"id": job.id, "kudos": 24.4}))
        request_id = path.rpartition("/")[2]
        job_or_none = self._horde.jobs.get(request_id)
        if method == b"DELETE":
            self._horde.jobs.pop(request_id, None)
            return response(b"200 OK", orjson.dumps(Job(0, Kind.WAIT).status() | {"done": True, "waiting": 0}))
        if job_or_none is not None:
            return response(b"200 OK", self._horde.read(job_or_none))
        if path.startswith("/api/v2/status/models"):
            return response(b"200 OK", b"[]")
        if path.startswith("/v1/"):  # An OTLP collector that takes everything.
            return response(b"200 OK", b"{}")
        return response(b"404 Not Found", b'{"message":"There is no such request.","rc":"RequestNotFound"}')

    def _serve_directly(self, transport: asyncio.Transport) -> None:
        kind = _kind(self._body, "model")
        stamps = Stamps()
        if not orjson.loads(self._body).get("stream"):
            transport.write(response(b"200 OK", orjson.dumps(Job(0, Kind.NOW).status())))
            return
        transport.write(_STREAM_HEAD)
        if kind is Kind.WAIT:
            self._later(KEEPALIVE_SECONDS, self._keep_alive)
        elif kind in {Kind.NOW, Kind.WHOLE}:
            transport.write(b"".join(chunk(stamps.next()) for _ in range(CHUNKS)) + _END)
        else:
            paced = kind is Kind.PACED
            left = CHUNKS if paced else LIVE_POSTS
            seconds = CHUNK_SECONDS if paced else 1.0
            self._later(START_SECONDS + CHUNK_SECONDS, lambda: self._write_chunk(stamps, left, seconds))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)

    def _keep_alive(self) -> None:
        if self._transport is not None:
            self._transport.write(part(b": horde queue_position=7 wait_time=42\n\n"))
            self._later(KEEPALIVE_SECONDS, self._keep_alive)

    def _write_chunk(self, stamps: Stamps, left: int, seconds: float) -> None:
        if self._transport is None:
            return
        if left == 0:
            self._transport.write(_END)
            return
        self._transport.write(chunk(stamps.next()))
        self._later(seconds, lambda: self._write_chunk(stamps, left - 1, seconds))


def _kind(body: bytes, key: str) -> Kind:
    named = orjson.loads(body)[key]
    return Kind((named if isinstance(named, str) else named[0]).removeprefix("bench/"))


async def serve(descriptor: int) -> None:
    """Serve on an inherited socket until the process is ended."""
    redis = Redis(os.environ["BENCH_REDIS_URL"])
    await redis.connect()
    horde = Horde(redis)
    listener = socket.socket(fileno=descriptor)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(horde), sock=listener, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
