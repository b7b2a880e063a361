"""The parts of a whole Horde as programs of their own, which a run may kill and start again."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from horde.local.process import ChildProcess, Command, wait_until_ready
from horde.local.valkey import LocalValkey
from horde.native.db.engine import Pool, create_pool
from horde.native.users import ensure_user
from tests.stress.echo_model import EchoModel
from tests.support.serving import serving
from tests.support.waiting import wait_until

__all__ = ["Parts", "running_parts"]

_START_SECONDS = 60.0
_STOP_SECONDS = 40.0


@dataclass(slots=True)
class Parts:
    """A running Horde: its programs, by name.

    The listening sockets are this process's: who connects while a program is started again waits, and is not refused.

    Attributes:
        folder: Where the programs log.
        pool: Connections to the Horde's database.
        model: The model that the workers share.
        api_key: The key of a user with kudos.
        front_url: The front's address.
        native_url: The native Horde's, ending in ``/api``.
        store: The stream store.
    """

    folder: Path
    pool: Pool
    store: LocalValkey
    model: str
    api_key: str = field(repr=False)
    front_url: str
    native_url: str
    _settings: dict[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    _sockets: dict[str, socket.socket] = field(default_factory=dict, repr=False)
    _running: dict[str, ChildProcess] = field(default_factory=dict, repr=False)
    _starts: int = 0

    def logs(self, name: str) -> list[str]:
        """Return the lines that all runs of a program logged."""
        paths = sorted(self.folder.glob(f"{name}.*.log"))
        return [line for path in paths for line in path.read_text(errors="replace").splitlines()]

    def start(self, name: str) -> None:
        """Start a program: ``native``, ``front`` or ``worker-<number>``."""
        self._starts += 1
        listener = self._sockets.get(name)
        module = "horde.oai" if name == "front" else f"horde.{name.split('-', maxsplit=1)[0]}"
        command = Command(
            argv=[sys.executable, "-P", "-m", module],
            log_path=self.folder / f"{name}.{self._starts:03}.log",
            environment={**_environment(), **self._settings[name]},
            inherited=() if listener is None else (listener.fileno(),),
        )
        self._running[name] = ChildProcess.start(name, command)

    async def restart(self, name: str, *, kill: bool) -> None:
        """End a program and start it again.

        Args:
            name: The program.
            kill: End it as a machine that fails does, and not by its stop signal.
        """
        child = self._running[name]
        if kill:
            child.send_signal(signal.SIGKILL)
            await child.wait()
        else:
            await child.stop(grace_seconds=_STOP_SECONDS)
        self.start(name)

    async def restart_store(self) -> None:
        """Kill the stream store and start it again, empty, on its port."""
        self.store.process.send_signal(signal.SIGKILL)
        await self.store.process.wait()
        await self.store.start()

    async def pause_store(self, seconds: float) -> None:
        """Let the stream store stand still for a while, its connections open."""
        self.store.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.store.process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Stop what runs: the front first, the native Horde last."""
        for name in sorted(self._running, key=_stop_order):
            await self._running[name].stop(grace_seconds=_STOP_SECONDS)

    async def ready(self, name: str, url: str) -> None:
        """Wait until a program answers."""
        async with aiohttp.ClientSession() as session:

            async def answers() -> bool:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as response:
                        return response.status == 200
                return False

            await wait_until_ready(self._running[name], answers, seconds=_START_SECONDS)


def _stop_order(name: str) -> int:
    return ("front", "worker", "native").index(name.split("-", maxsplit=1)[0])


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HORDE_")}


@contextlib.asynccontextmanager
async def running_parts(
    folder: Path, database_url: str, store: LocalValkey, *, workers: int, threads: int, word_seconds: float
) -> AsyncIterator[Parts]:
    """Start native Horde, front and workers over a database and a stream store, and stop them afterwards.

    Args:
        folder: Where they log.
        database_url: A database of the run's own.
        store: The stream store.
        workers: How many workers.
        threads: Jobs that each serves at a time.
        word_seconds: Pace of the replies.
    """
    model = EchoModel(word_seconds)
    with contextlib.ExitStack() as sockets:
        native, front = (sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096)) for _ in range(2))
        async with serving(model) as model_url:
            pool = await create_pool(database_url, size=2, application_name="scale run")
            parts = Parts(
                folder, pool, store, model.model, secrets.token_urlsafe(16), _url(front), f"{_url(native)}/api"
            )
            parts._sockets = {"native": native, "front": front}
            worker_key = secrets.token_urlsafe(16)
            parts._settings = _settings(parts, database_url, model_url, worker_key, workers, threads)
            try:
                await _start_all(parts, worker_key)
                yield parts
            finally:
                await parts.stop()
                await pool.close()


async def _start_all(parts: Parts, worker_key: str) -> None:
    """Start the programs and wait until the front can be asked and every worker is known."""
    parts.start("native")
    await parts.ready("native", parts.native_url.removesuffix("/api") + "/readyz")
    await ensure_user(parts.pool, "scale client", parts.api_key, kudos=1_000_000)
    await ensure_user(parts.pool, "scale worker", worker_key)
    others = [name for name in parts._settings if name != "native"]
    for name in others:
        parts.start(name)
    await parts.ready("front", f"{parts.front_url}/readyz")

    async def workers_are_online() -> bool:
        return bool(await parts.pool.fetchval("SELECT count(*) = $1 FROM workers", len(others) - 1))

    await wait_until(workers_are_online, description="the workers", seconds=_START_SECONDS)


def _url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _settings(
    parts: Parts, database_url: str, model_url: str, worker_key: str, workers: int, threads: int
) -> dict[str, Mapping[str, str]]:
    worker = {
        "HORDE_WORKER_HORDE_URL": parts.native_url,
        "HORDE_WORKER_BACKEND_URL": f"{model_url}/v1",
        "HORDE_WORKER_API_KEY": worker_key,
        "HORDE_WORKER_THREADS": str(threads),
        "HORDE_WORKER_DRAIN_SECONDS": "1",
        "HORDE_WORKER_LOG_FORMAT": "text",
    }
    native = {
        "HORDE_NATIVE_DATABASE_URL": database_url,
        "HORDE_NATIVE_REDIS_URL": parts.store.url,
        "HORDE_NATIVE_LISTEN_FD": str(parts._sockets["native"].fileno()),
        "HORDE_NATIVE_DRAIN_SECONDS": "5",
        # A killed worker's job is to come back within the run.
        "HORDE_NATIVE_LEASE_SECONDS": "6",
    }
    front = {
        "HORDE_OAI_HORDE_URLS": parts.native_url,
        "HORDE_OAI_REDIS_URL": parts.store.url,
        "HORDE_OAI_LISTEN_FD": str(parts._sockets["front"].fileno()),
        "HORDE_OAI_OPEN_REQUESTS_SECRET": worker_key,
        "HORDE_OAI_FRONT_LEASE_SECONDS": "1",
        "HORDE_OAI_MAX_INFLIGHT_PER_SOURCE": "4096",
        "HORDE_OAI_DRAIN_ACCEPT_SECONDS": "0",
        "HORDE_OAI_DRAIN_SECONDS": "5",
        "HORDE_OAI_LOG_FORMAT": "text",
    }
    named = {f"worker-{number}": {**worker, "HORDE_WORKER_NAME": f"worker-{number}"} for number in range(workers)}
    return {"native": native, "front": front, **named}
