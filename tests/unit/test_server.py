"""How a part listens, serves and stops, on real sockets: signals, the drain's end, what a connection may hold."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from horde.client_address import ClientAddresses
from horde.http_protocol import ConnectionLimits
from horde.oai.answers import ClientStalledError, EventStream
from horde.server import ServeOptions, bind_socket, run_event_loop, serve
from tests.support.waiting import wait_until

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="these socket options are Linux's")

type Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class Application:
    """An application whose requests a test's own handler serves.

    Attributes:
        handler: Serves a request.
        closed: Whether its lifespan ended in order.
        lifespan: The task of its lifespan.
        requests: Requests that came.
    """

    handler: Handler
    closed: bool = False
    lifespan: "asyncio.Task[object] | None" = None
    requests: list[Scope] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.requests.append(scope)
            await self.handler(scope, receive, send)
            return
        self.lifespan = asyncio.current_task()
        while True:
            kind = (await receive())["type"]
            self.closed = kind == "lifespan.shutdown"
            await send({"type": f"{kind}.complete"})
            if self.closed:
                return


@dataclass(frozen=True, slots=True)
class Running:
    """A server under test."""

    port: int
    stopping: asyncio.Event
    task: "asyncio.Task[None]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@asynccontextmanager
async def running(
    app: Application, options: ServeOptions, stopping: asyncio.Event | None = None
) -> AsyncIterator[Running]:
    """Serve an application; on leaving, stop the server and wait for its end."""
    listener = bind_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    stopping = stopping or asyncio.Event()
    task = asyncio.create_task(serve(app, listener, stopping=stopping, options=options), name="test - server")
    try:
        async with aiohttp.ClientSession() as session:
            await wait_until(lambda: accepts(session, port), description="the server to listen")
        yield Running(port, stopping, task)
    finally:
        stopping.set()
        await task


async def accepts(session: aiohttp.ClientSession, port: int) -> bool:
    with suppress(aiohttp.ClientError):
        async with session.options(f"http://127.0.0.1:{port}/"):
            return True
    return False


async def answer(send: Send, body: bytes = b"done") -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def fetch(url: str, **headers: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        assert response.status == 200
        return await response.read()


def answering_when(release: asyncio.Event) -> Application:
    async def handler(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await release.wait()
        await answer(send)

    return Application(handler)


def gets(app: Application) -> int:
    return sum(scope["method"] == "GET" for scope in app.requests)


# Signals and the end of a drain


async def test_the_first_signal_does_not_cut_short_a_drain_that_the_application_began() -> None:
    release = asyncio.Event()
    app = answering_when(release)
    async with running(app, ServeOptions(drain_seconds=10)) as server:
        reply = asyncio.create_task(fetch(server.url))
        await wait_until(lambda: gets(app), description="the request")
        server.stopping.set()
        signal.raise_signal(signal.SIGTERM)
        release.set()
        assert await reply == b"done"
        await server.task
    assert app.closed


GET = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n"


@pytest.mark.parametrize("sent", [0, 10])
async def test_a_request_on_its_way_as_the_listener_closes_is_served_and_is_the_last(sent: int) -> None:
    async with running(answering_when(set_event()), ServeOptions()) as server, aiohttp.ClientSession() as session:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET[:sent])
        server.stopping.set()

        async def is_closed() -> bool:
            return not await accepts(session, server.port)

        await wait_until(is_closed, description="the listener to close")
        writer.write(GET[sent:] + GET)
        reply = await reader.read()
        writer.close()
    assert (reply.count(b"HTTP/1.1 200"), reply[-4:]) == (1, b"done")
    assert b"connection: close\r\n" in reply


class Connecting(asyncio.Event):
    """An event at which another client connects and sends its request: before anyone hears of it."""

    def __init__(self) -> None:
        super().__init__()
        self.port: int | None = None
        self.clients: list[socket.socket] = []

    def set(self) -> None:
        if self.port is not None:
            client = socket.create_connection(("127.0.0.1", self.port))
            client.sendall(GET)
            self.clients.append(client)
        super().set()


async def test_a_connection_that_waits_to_be_accepted_as_the_listener_closes_is_served() -> None:
    stopping = Connecting()
    async with running(answering_when(set_event()), ServeOptions(), stopping) as server:
        # The server sets it too, in the same step in which it closes the listener.
        stopping.port = server.port
        stopping.set()
        await wait_until(lambda: len(stopping.clients) == 2, description="the server to stop")
        stopping.port = None
        for client in stopping.clients:
            reader, writer = await asyncio.open_connection(sock=client)
            assert (await reader.read()).endswith(b"done")
            writer.close()


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_wait_for_running_requests(second: signal.Signals) -> None:
    release = asyncio.Event()
    app = answering_when(release)
    async with running(app, ServeOptions(drain_seconds=60, accept_seconds=60)) as server:
        reply = asyncio.create_task(fetch(server.url))
        await wait_until(lambda: gets(app), description="the request")
        signal.raise_signal(signal.SIGTERM)
        await wait_until(server.stopping.is_set, description="the application to be told")
        signal.raise_signal(second)
        async with asyncio.timeout(30):
            await server.task
        with pytest.raises(aiohttp.ClientError):
            await reply
    assert app.lifespan is not None
    assert app.lifespan.cancel()  # The program's end does it: a forced stop does not wait for the application.
    release.set()


async def test_what_an_application_answers_at_the_end_of_its_own_drain_still_goes_out() -> None:
    drain_seconds = 1.4
    stopping: list[asyncio.Event] = []

    async def handler(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await stopping[0].wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await asyncio.Event().wait()
        await answer(send, b"given up in order")

    app = Application(handler)
    async with running(app, ServeOptions(drain_seconds=drain_seconds)) as server:
        stopping.append(server.stopping)
        reply = asyncio.create_task(fetch(server.url))
        await wait_until(lambda: gets(app), description="the request")
        server.stopping.set()
        assert await reply == b"given up in order"


# Whose request it is


async def test_a_peer_on_this_machine_is_not_believed_about_whose_request_it_is() -> None:
    seen: list[str] = []

    async def handler(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(ClientAddresses([]).read(scope["client"][0], "203.0.113.9"))
        await answer(send)

    async with running(Application(handler), ServeOptions()) as server:
        await fetch(server.url, **{"X-Forwarded-For": "203.0.113.9"})
    assert seen[-1] == "127.0.0.1"


# Clients that stop reading


@asynccontextmanager
async def silent_client(port: int) -> AsyncIterator[None]:
    """Send a request and read nothing of its answer, the connection left open."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)  # noqa: FBT003 - its only argument
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        yield


@on_linux
async def test_a_stream_that_nobody_reads_is_noticed_within_the_write_timeout() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handler(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await answer(send)
            return
        stream = EventStream(send, write_timeout_seconds=0.1)
        await stream.open({})
        try:
            for _ in range(16):
                await stream.write([b"x" * 65536])
            await stream.write([], last=True)
        except ClientStalledError:
            ended.set_result("stalled")
            raise
        ended.set_result("taken by the kernel")

    options = ServeOptions(drain_seconds=1, send_buffer_bytes=192 * 1024)
    async with running(Application(handler), options) as server, silent_client(server.port):
        async with asyncio.timeout(30):
            assert await ended == "stalled"


@on_linux
async def test_a_connection_whose_client_reads_nothing_is_ended_by_the_kernel() -> None:
    ended = asyncio.Event()

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await answer(send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 2**23, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    options = ServeOptions(drain_seconds=1, unread_seconds=0.5)
    async with running(Application(handler), options) as server, silent_client(server.port):
        async with asyncio.timeout(30):
            await ended.wait()


@on_linux
def test_a_large_answer_is_not_slowed_down_by_the_bounded_buffer() -> None:
    async def handler(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, b"x" * 2**20)

    async def one_is_quick() -> int:
        loop = asyncio.get_running_loop()
        async with running(Application(handler), ServeOptions(send_buffer_bytes=192 * 1024)) as server:

            async def is_quick() -> bool:
                began = loop.time()
                assert len(await fetch(server.url)) == 2**20
                return loop.time() - began < 0.25

            await wait_until(is_quick, description="a quick answer")
        return 0

    # On the programs' own loop. A buffer under one segment of the loopback (64 KiB) costs a delayed acknowledgement of
    # 40 ms for each of a dozen parts, every time; what else the machine does costs time now and then.
    assert run_event_loop(one_is_quick) == 0


async def test_a_connection_over_their_bound_is_closed_as_it_comes() -> None:
    options = ServeOptions(limits=ConnectionLimits(max_connections=2))
    async with running(answering_when(set_event()), options) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()
        for _, held in idle:
            held.close()

        async def is_served() -> bool:
            with suppress(aiohttp.ClientError):
                return await fetch(server.url) == b"done"
            return False

        await wait_until(is_served, description="room for another connection")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of open files")
async def test_a_server_raises_its_limit_of_open_files_as_far_as_it_may() -> None:
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        async with running(answering_when(set_event()), ServeOptions()):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_program_s_collector_leaves_alone_what_its_imports_made() -> None:
    script = """
import gc
from horde.server import run_event_loop

async def main() -> int:
    return 0 if gc.get_freeze_count() > 10_000 and not gc.get_objects(generation=2) else 1

raise SystemExit(run_event_loop(main))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
