"""HTTP as bytes: a client that sends what no library would, and the front served as its program serves it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from horde.oai.__main__ import serve_options
from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from horde.server import bind_socket, serve
from tests.support.front import FAST
from tests.support.scripted_horde import ScriptedHorde
from tests.support.waiting import wait_until

__all__ = ["Address", "RawAnswer", "RawClient", "chat_request", "raw_client", "served_front"]

type Address = tuple[str, int]

_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One response.

    Attributes:
        status: Its status.
        headers: Its headers, names in lower case.
        body: Its body as it was sent, chunk sizes included.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error of its envelope."""
        error: dict[str, Any] = orjson.loads(self.body)["error"]
        return error


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes) -> None:
        """Send parts, each with a turn of the loop after it, so that they arrive apart."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def head(self) -> RawAnswer:
        """Read the head of a response."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return RawAnswer(int(lines[0].split()[1]), headers, b"")

    async def answer(self) -> RawAnswer:
        """Read a response: as long as it says, or to its last chunk, or to the end of the connection."""
        head = await self.head()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            if "content-length" in head.headers:
                body = await self._reader.readexactly(int(head.headers["content-length"]))
            elif "transfer-encoding" in head.headers:
                body = await self._reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                body = await self._reader.read()
        return replace(head, body=body)

    async def is_closed(self) -> bool:
        """Wait for the server to close, and say whether it did so without another byte."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await self._reader.read() == b""

    def end(self) -> None:
        """Say that nothing more will be sent."""
        self._writer.write_eof()

    def leave(self) -> None:
        """Close the connection."""
        self._writer.close()

    def reset(self) -> None:
        """Close the connection as a program does that crashed with something unread."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@asynccontextmanager
async def raw_client(address: Address) -> AsyncIterator[RawClient]:
    """Connect, and close at the end."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


def chat_request(
    body: dict[str, Any], *headers: str, version: str = "1.1", target: str = "/v1/chat/completions"
) -> bytes:
    """Return a chat request as bytes, its length declared."""
    data = orjson.dumps(body)
    lines = [f"POST {target} HTTP/{version}", "Host: front", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


@asynccontextmanager
async def served_front(
    horde: ScriptedHorde, *, options: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Address]:
    """Serve the front as its program does and yield its address.

    Args:
        horde: The Horde behind it.
        options: Options of the server other than the program's.
        settings: Settings other than the tests' own.
    """
    values = {"horde_urls": (horde.url,), **FAST, "drain_seconds": 1.0, **settings}
    front = FrontSettings(**values)
    listener = bind_socket("127.0.0.1", 0)
    address = listener.getsockname()
    stopping = asyncio.Event()
    listening = replace(serve_options(front), **(options or {}))
    server = asyncio.create_task(
        serve(create_app(front, stopping=stopping), listener, stopping=stopping, options=listening), name="test - front"
    )
    try:
        # A connection made before the server has started would lack the socket's options.
        await wait_until(lambda: listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), description="listening")
        yield address
    finally:
        stopping.set()
        await server
