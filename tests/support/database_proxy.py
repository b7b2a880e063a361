"""Stands between a Horde and PostgreSQL, and cuts a connection at any statement: before it, or after its commit.

It reads just as much of PostgreSQL's protocol as that takes: a client's messages have a type of one byte and a length
of four (the first one has no type), and ``Q`` and ``S`` end a round to which the server answers up to its ``Z``.
"""

import asyncio
import contextlib
import enum
import struct
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Cut", "DatabaseProxy", "database_proxy"]

_ROUND_ENDS = frozenset({b"Q", b"S"})
_READY = b"Z"


class Cut(enum.StrEnum):
    """Where a connection is cut.

    Attributes:
        BEFORE: The statement never reaches the server.
        AFTER: The server has done it, and its answer is lost.
    """

    BEFORE = "before"
    AFTER = "after"


class DatabaseProxy:
    """The proxy.

    Attributes:
        url: Its address, in place of the database's.
        rounds: Rounds that clients have begun since :meth:`count_anew`.
        target: Host and port of the server.
    """

    def __init__(self, database_url: str) -> None:
        self._parts = urlsplit(database_url)
        assert self._parts.hostname is not None
        assert self._parts.port is not None
        self.target = (self._parts.hostname, self._parts.port)
        self.url = ""
        self.rounds = 0
        self._cut: tuple[int, Cut] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def listen_at(self, port: int) -> None:
        """Note the port that clients connect to."""
        credentials = self._parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(
            (self._parts.scheme, f"{credentials}@127.0.0.1:{port}", self._parts.path, "sslmode=disable", "")
        )

    def count_anew(self, cut_at: int | None = None, cut: Cut = Cut.BEFORE) -> None:
        """Count rounds from 0 again, and cut the connection of one of them.

        Args:
            cut_at: Which one, from 1; none when None.
            cut: On which side of the statement.
        """
        self.rounds = 0
        self._cut = None if cut_at is None else (cut_at, cut)

    async def serve(self, client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until either side leaves or it is cut."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            server, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        finally:
            task.add_done_callback(self._connections.discard)
        # Answers pass on unless the one that is due is to be lost: then they are read here and not passed on.
        answers = asyncio.create_task(_pass_on(server, writer), name="test - database answers")
        try:
            await self._pass_rounds(client, server, server_writer, answers)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answers.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await answers
            writer.transport.abort()
            server_writer.transport.abort()

    async def _pass_rounds(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        answers: "asyncio.Task[None]",
    ) -> None:
        kind = b""
        while True:
            head = await client.readexactly(4)
            (length,) = struct.unpack("!I", head)
            data = kind + head + await client.readexactly(length - 4)
            cut = self._due(kind)
            if cut is Cut.AFTER:
                answers.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answers
                to_server.write(data)
                await _read_until_ready(server)
            if cut is not None:
                return
            to_server.write(data)
            await to_server.drain()
            kind = await client.readexactly(1)

    def _due(self, kind: bytes) -> Cut | None:
        """Count a message that ends a round, and take the cut that is due at it."""
        if kind not in _ROUND_ENDS:
            return None
        self.rounds += 1
        if self._cut is None or self._cut[0] != self.rounds:
            return None
        cut, self._cut = self._cut[1], None
        return cut

    def cut_all(self) -> None:
        """Cut every connection, as a server that is killed does."""
        for task in self._connections:
            task.cancel()


async def _pass_on(server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    while data := await server.read(65536):
        client.write(data)
        await client.drain()
    client.transport.abort()


async def _read_until_ready(server: asyncio.StreamReader) -> None:
    kind = b""
    while kind != _READY:
        kind = await server.readexactly(1)
        (length,) = struct.unpack("!I", await server.readexactly(4))
        await server.readexactly(length - 4)


@contextlib.asynccontextmanager
async def database_proxy(database_url: str) -> AsyncIterator[DatabaseProxy]:
    """Run a proxy on a free port of the loopback address.

    Args:
        database_url: The database behind it, host and port included.
    """
    proxy = DatabaseProxy(database_url)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.listen_at(listener.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut_all()
        await listener.wait_closed()
