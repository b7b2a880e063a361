"""Stands between a front and Redis, and can stop forwarding: the connection stands and nothing comes through."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit

__all__ = ["RedisProxy", "redis_proxy"]

_CHUNK_BYTES = 65536


class RedisProxy:
    """The proxy.

    Attributes:
        url: Its address, in place of the server's.
        connections: Connections that clients made so far.
        read_count: Reads from clients so far: who is busy for nothing shows here.
    """

    def __init__(self, redis_url: str) -> None:
        self._parts = urlsplit(redis_url)
        self.url = ""
        self.connections = 0
        self.read_count = 0
        self._passing = asyncio.Event()
        self._passing.set()
        self._is_down = False
        self._serving: set[asyncio.Task[None]] = set()

    def listen_at(self, port: int) -> None:
        """Note the port that clients connect to."""
        credentials = self._parts.netloc.rpartition("@")[0]
        self.url = urlunsplit((self._parts.scheme, f"{credentials}@127.0.0.1:{port}", self._parts.path, "", ""))

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Forward nothing in either direction for as long as the context is open; connections are still accepted."""
        self._passing.clear()
        try:
            yield
        finally:
            self._passing.set()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Cut every connection, and every new one at once, as where a server was killed."""
        self._is_down = True
        self.cut_all()
        try:
            yield
        finally:
            self._is_down = False

    def cut_all(self) -> None:
        """Cut every connection."""
        for task in self._serving:
            task.cancel()

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Serve one client until either side leaves."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self.connections += 1
        if self._is_down:
            to_client.transport.abort()
            return
        to_server: asyncio.StreamWriter | None = None
        try:
            server, to_server = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(server, to_client, counted=False), name="test - redis answers")
                await self._pass_on(client, to_server, counted=True)
                raise ConnectionResetError
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            to_client.transport.abort()
            if to_server is not None:
                to_server.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, counted: bool) -> None:
        while data := await source.read(_CHUNK_BYTES):
            self.read_count += counted
            await self._passing.wait()
            to.write(data)
            await to.drain()
        raise ConnectionResetError


@contextlib.asynccontextmanager
async def redis_proxy(redis_url: str) -> AsyncIterator[RedisProxy]:
    """Run a proxy on a free port of the loopback address.

    Args:
        redis_url: The server behind it, host and port included.
    """
    proxy = RedisProxy(redis_url)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.listen_at(listener.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut_all()
        await listener.wait_closed()
