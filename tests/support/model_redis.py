"""A Redis in memory, behind the connection class of the client: what the front's own links say to it is answered here.

It knows what the front uses: SUBSCRIBE and PING, XREAD with and without BLOCK, CLIENT ID and CLIENT UNBLOCK.
"""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

__all__ = ["ModelRedis"]

_FOR_EVER = 1e9


class ModelRedis:
    """The server, and the client of it that a front is given.

    Attributes:
        down: Connections break and none can be made.
        streams: Entries of each stream, id and fields.
    """

    def __init__(self) -> None:
        self.down = False
        self.streams: dict[bytes, list[tuple[int, list[bytes]]]] = {}
        self.connections: set[_Connection] = set()
        self.numbers = itertools.count(1)
        self.changed = asyncio.Event()
        self.connection_pool = SimpleNamespace(
            connection_kwargs={}, connection_class=lambda **_options: _Connection(self)
        )

    def publish(self, body: bytes) -> None:
        """Send a message to whoever is subscribed at this moment."""
        for connection in self.connections:
            if connection.subscribed:
                connection.replies.put_nowait([b"message", b"channel", body])

    def add(self, key: bytes, fields: list[bytes]) -> None:
        """Append an entry."""
        entries = self.streams.setdefault(key, [])
        entries.append((len(entries) + 1, fields))
        self.wake_readers()

    def wake_readers(self) -> None:
        """Let the blocking reads look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def break_off(self) -> None:
        """Lose every connection, and take none until ``down`` is cleared."""
        self.down = True
        for connection in list(self.connections):
            connection.lose()

    def read(self, keys: list[bytes], behind: list[bytes], count: int) -> list[Any] | None:
        """Return the entries behind the ids given, as XREAD does."""
        found = []
        for key, last in zip(keys, behind, strict=True):
            after = int(last.split(b"-")[0])
            entries = [(number, fields) for number, fields in self.streams.get(key, []) if number > after][:count]
            if entries:
                found.append([key, [[b"%d-0" % number, fields] for number, fields in entries]])
        return found or None


class _Connection:
    """One connection, with the methods of the library's that a link uses."""

    def __init__(self, server: ModelRedis) -> None:
        self.server = server
        self.number = 0
        self.is_connected = False
        self.subscribed = False
        self.blocked: asyncio.Event | None = None
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self._jobs: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        await asyncio.sleep(0.0005)
        if self.server.down:
            raise RedisConnectionError("refused")
        self.number = next(self.server.numbers)
        self.replies = asyncio.Queue()
        self.is_connected = True
        self.server.connections.add(self)

    async def disconnect(self, *, nowait: bool = False) -> None:
        del nowait
        self._forget()

    def lose(self) -> None:
        self._forget()
        self.replies.put_nowait(RedisConnectionError("lost"))

    def _forget(self) -> None:
        self.is_connected = self.subscribed = False
        self.server.connections.discard(self)
        for job in self._jobs:
            job.cancel()

    async def send_packed_command(self, packed: bytes, *, check_health: bool) -> None:
        del check_health
        for command in _unpack(packed):
            self._answer(command)

    def _answer(self, command: list[bytes]) -> None:
        match command:
            case [b"SUBSCRIBE", channel]:
                self.subscribed = True
                self.replies.put_nowait([b"subscribe", channel, 1])
            case [b"PING"]:
                self.replies.put_nowait([b"pong", b""])
            case [b"CLIENT", b"ID"]:
                self.replies.put_nowait(self.number)
            case [b"CLIENT", b"UNBLOCK", number]:
                self.replies.put_nowait(self._unblock(int(number)))
            case [b"XREAD", b"BLOCK", milliseconds, b"COUNT", count, b"STREAMS", *rest]:
                job = asyncio.create_task(self._read_blocking(rest, int(count), int(milliseconds) / 1000))
                self._jobs.add(job)
                job.add_done_callback(self._jobs.discard)
            case [b"XREAD", b"COUNT", count, b"STREAMS", *rest]:
                half = len(rest) // 2
                self.replies.put_nowait(self.server.read(rest[:half], rest[half:], int(count)))
            case _:
                self.replies.put_nowait(ResponseError(f"unknown command {command!r}"))

    def _unblock(self, number: int) -> int:
        for connection in self.server.connections:
            if connection.number == number and connection.blocked is not None:
                connection.blocked.set()
                return 1
        return 0

    async def _read_blocking(self, rest: list[bytes], count: int, seconds: float) -> None:
        half = len(rest) // 2
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self.blocked = asyncio.Event()
        try:
            while (found := self.server.read(rest[:half], rest[half:], count)) is None:
                if self.blocked.is_set() or loop.time() >= end:
                    break
                waits = {asyncio.ensure_future(self.blocked.wait()), asyncio.ensure_future(self.server.changed.wait())}
                try:
                    await asyncio.wait(waits, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in waits:
                        each.cancel()
        finally:
            self.blocked = None
        self.replies.put_nowait(found)

    async def read_response(self, *, disable_decoding: bool, timeout: float = _FOR_EVER) -> Any:  # noqa: ASYNC109 - the library's name
        del disable_decoding
        try:
            async with asyncio.timeout(timeout):
                reply = await self.replies.get()
        except TimeoutError:
            return None
        if isinstance(reply, Exception):
            raise reply
        return reply


def _unpack(packed: bytes) -> list[list[bytes]]:
    commands, position = [], 0
    while position < len(packed):
        count, position = _number(packed, position)
        command = []
        for _ in range(count):
            length, position = _number(packed, position)
            command.append(packed[position : position + length])
            position += length + 2
        commands.append(command)
    return commands


def _number(packed: bytes, position: int) -> tuple[int, int]:
    end = packed.index(b"\r\n", position)
    return int(packed[position + 1 : end]), end + 2
