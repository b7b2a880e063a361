"""Clients that ask and then read nothing, on real sockets and with the program's own options."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from horde.oai.__main__ import serve_options
from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from horde.server import bind_socket, serve
from tests.support.front import FAST, chat_body
from tests.support.leaks import open_sockets
from tests.support.scripted_horde import ScriptedHorde, generation, scripted_horde, status
from tests.support.waiting import wait_until


@asynccontextmanager
async def served_front(horde: ScriptedHorde) -> AsyncIterator[tuple[str, int]]:
    """Serve the front as its program does, with a short write timeout, and yield its address."""
    settings = FrontSettings(horde_urls=(horde.url,), **FAST, write_timeout_seconds=0.5, drain_seconds=1.0)
    listener = bind_socket("127.0.0.1", 0)
    stopping = asyncio.Event()
    app = create_app(settings, stopping=stopping)
    address = listener.getsockname()
    server = asyncio.create_task(serve(app, listener, stopping=stopping, options=serve_options(settings)))
    try:
        # A connection made before the server starts would have the socket's options from before.
        await wait_until(lambda: listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), description="listening")
        yield address
    finally:
        stopping.set()
        await server


@pytest.mark.skipif(sys.platform != "linux", reason="the options of its sockets are Linux's")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_reads_nothing_of_a_large_reply_loses_its_connection(*, stream: bool) -> None:
    loop = asyncio.get_running_loop()
    body = orjson.dumps(chat_body(stream=stream))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    async with scripted_horde() as horde:
        horde.play(status("replied", generation("word " * 200_000)))
        async with served_front(horde) as address:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)  # noqa: FBT003 - its only argument
                await loop.sock_connect(client, address)
                await loop.sock_sendall(client, head.encode() + body)
                await wait_until(lambda: horde.of("GET", "/status/"), description="the reply to be there")
                held = len(open_sockets())
                await wait_until(lambda: len(open_sockets()) < held, description="the connection to be given up")
