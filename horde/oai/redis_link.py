"""One connection to Redis that belongs to one task.

A pool serves commands that come and go. The signals and the delta reader need a connection of their own, whose loss
they see at once and whose replacement they make themselves: a library that quietly reconnects would hide that signals
were missed. So nothing is retried here, nothing is pinged, and replies stay bytes: a text that is no UTF-8 must not
break the reading of others.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from loguru import logger
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

__all__ = ["LINK_ERRORS", "OutageLog", "RedisLink", "Reply"]

LINK_ERRORS = (RedisError, OSError)
"""What a link raises when it fails; ``TimeoutError`` is among them."""

type Reply = bytes | int | list[Reply] | None
"""A reply as the server sent it; errors are raised, or returned as ``ResponseError`` by ``call_many``."""

_NOT_FOR_A_LINK = ("maint_notifications_config", "maint_notifications_pool_handler", "lib_name", "lib_version")
"""Options of a pool's connections that make a library act on its own."""


def _pack(arguments: Sequence[bytes]) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


class RedisLink:
    """A connection to the server of a client, opened by its first command and again after a failure.

    Every command has a time limit. A failed or cancelled command closes the connection, since a late reply must not be
    taken for the next one's.

    Args:
        redis: Client whose address, database and credentials are used; its pool is not.
        name: Name of the connection in the server's list of clients.
        limit_seconds: Longest time for opening, and for one command.
    """

    def __init__(self, redis: Redis, name: str, *, limit_seconds: float) -> None:
        pool = redis.connection_pool
        options: dict[str, Any] = {
            key: value for key, value in pool.connection_kwargs.items() if key not in _NOT_FOR_A_LINK
        }
        options.update(
            client_name=name,
            decode_responses=False,
            driver_info=None,
            health_check_interval=0,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_connect_timeout=limit_seconds,
            socket_timeout=None,  # The limits are ours.
        )
        self._connection: AbstractConnection = pool.connection_class(**options)
        self._limit = limit_seconds

    @property
    def is_open(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return bool(self._connection.is_connected)

    async def open(self) -> None:
        """Connect, if it is not.

        Raises:
            RedisError: The server refused.
            OSError: It cannot be reached, or not in time.
        """
        if self.is_open:
            return
        try:
            async with asyncio.timeout(self._limit):
                await self._connection.connect()  # type: ignore[no-untyped-call] # not annotated there
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; it may be opened again."""
        await self._connection.disconnect(nowait=True)

    async def call(self, *arguments: bytes) -> Reply:
        """Send a command and return its reply.

        Raises:
            ResponseError: The server refused the command; the connection stays open.
            RedisError: The connection failed.
            OSError: The connection failed, or the time limit was reached.
        """
        (reply,) = await self.call_many([arguments])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def call_many(self, commands: Sequence[Sequence[bytes]]) -> list[Reply | ResponseError]:
        """Send commands together and return their replies, refusals among them.

        Raises:
            RedisError: The connection failed.
            OSError: The connection failed, or the time limit was reached.
        """
        async with asyncio.timeout(self._limit):
            await self._send(b"".join(map(_pack, commands)))
            return [await self._read_reply() for _ in commands]

    async def send(self, *arguments: bytes) -> None:
        """Send a command whose replies are read with ``read``.

        Raises:
            RedisError: The connection failed.
            OSError: The connection failed, or the time limit was reached.
        """
        async with asyncio.timeout(self._limit):
            await self._send(_pack(arguments))

    async def read(self, seconds: float) -> Reply:
        """Return the next thing that the server sends, None when nothing came in time.

        Raises:
            RedisError: The connection failed, or the server refused what was sent before.
        """
        reply = await self._connection.read_response(disable_decoding=True, timeout=seconds)
        return cast("Reply", reply)

    async def _send(self, packed: bytes) -> None:
        if not self.is_open:  # The library would connect again, without what was said on the lost connection.
            raise RedisConnectionError("The connection is closed.")
        await self._connection.send_packed_command(packed, check_health=False)

    async def _read_reply(self) -> Reply | ResponseError:
        try:
            return cast("Reply", await self._connection.read_response(disable_decoding=True))
        except ResponseError as error:  # The command was refused; the connection is as good as before.
            return error


class OutageLog:
    """Logs the beginning and the end of an outage, once each, whatever number of attempts fail in between.

    Args:
        subject: What is away, in a sentence: "The delta reader".
        consequence: What that means meanwhile.
    """

    def __init__(self, subject: str, consequence: str) -> None:
        self._subject = subject
        self._consequence = consequence
        self._is_down = False

    def begin(self, error: BaseException) -> None:
        """Note a failure. Only its kind is logged: a message may hold an address."""
        if not self._is_down:
            self._is_down = True
            logger.warning("{} lost Redis ({}). {}", self._subject, type(error).__name__, self._consequence)

    def end(self) -> None:
        """Note a success."""
        if self._is_down:
            self._is_down = False
            logger.info("{} has Redis again.", self._subject)
