"""A real PostgreSQL for tests: one server per test process, one database per test, copied from a template."""

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg

from horde.local.postgres import LocalPostgres

__all__ = ["DatabasesForTests"]

_TEMPLATE = "migrated"


class DatabasesForTests:
    """A context manager: a server with databases that come and go.

    Its methods are synchronous and run in an event loop of their own, so that fixtures of synchronous and of
    asynchronous tests use them alike.

    Args:
        folder: Where the cluster is made.
    """

    def __init__(self, folder: Path) -> None:
        self._server = LocalPostgres(folder, for_tests=True)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._numbers = itertools.count(1)
        self._connection: asyncpg.Connection | None = None
        self._template_made = False

    def __enter__(self) -> Self:
        try:
            self._run(self._server.start())
            self._connection = self._run(asyncpg.connect(self._server.url))
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
            if self._connection is not None:
                self._connection.terminate()
            self._run(self._server.stop())
        finally:
            self._runner.close()

    def create(self) -> str:
        """Create an empty database and return its name."""
        return self._create("template0")

    def create_migrated(self) -> str:
        """Create a copy of the database that the Horde's migrations made once, and return its name."""
        if not self._template_made:
            # The import is the Horde's, and only tests that ask for its database need it.
            from horde.native.db.engine import migrate  # noqa: PLC0415

            self._execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
            migrate(self._server.url_of(_TEMPLATE))
            self._template_made = True
        return self._create(_TEMPLATE)

    def url_of(self, name: str) -> str:
        """Return a database's address."""
        return self._server.url_of(name)

    def drop(self, name: str) -> bool:
        """Drop a database and say whether the test had closed its connections to it."""
        try:
            # The server itself waits some seconds for connections that are being closed.
            self._execute(f"DROP DATABASE {name}")
        except asyncpg.ObjectInUseError:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")
            return False
        return True

    def _create(self, template: str) -> str:
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _execute(self, statement: str) -> None:
        assert self._connection is not None, "the server was not started"
        self._run(self._connection.execute(statement, timeout=60))

    def _run[Result](self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)
