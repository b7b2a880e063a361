"""A real Valkey for tests: one server per test process, emptied after each test."""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from horde.local.valkey import LocalValkey
from tests.support.leaks import keys_without_expiry

__all__ = ["StreamStoreForTests"]


class StreamStoreForTests:
    """A context manager: a server, and a synchronous client that looks after it.

    Args:
        folder: Where its log is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._server = LocalValkey(folder)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._client: redis.Redis | None = None

    @property
    def url(self) -> str:
        """Its address, password included."""
        return self._server.url

    @property
    def pid(self) -> int:
        """Its process id: tests pause it with SIGSTOP."""
        return self._server.process.pid

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._server.start())
            self._client = redis.Redis.from_url(self.url, socket_timeout=10)
            # Connected now: a socket that opens within a test would look like the test's.
            self._client.ping()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._client is not None:
                self._client.close()
            self._runner.run(self._server.stop())
        finally:
            self._runner.close()

    def empty(self) -> list[str]:
        """Remove every key of every database and return those of database 0 that had no expiry."""
        assert self._client is not None, "the server was not started"
        lasting = keys_without_expiry(self._client)
        self._client.flushall()
        return lasting
