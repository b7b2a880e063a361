"""Starts a whole Horde on one machine: in order where one part needs another, side by side where none does."""

import asyncio
import importlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from horde.local.console import Steps
from horde.local.errors import StartError
from horde.local.model_server import ModelServerError, bundled_model_path
from horde.local.parts import Addresses, front_command, model_server_command, native_command, worker_command
from horde.local.postgres import LocalPostgres
from horde.local.process import ChildProcess, Command, wait_until_ready
from horde.local.state import LocalKeys, StateFolder
from horde.local.supervisor import FRONT, MODEL_SERVER, NATIVE, WORKER, Supervisor
from horde.local.valkey import LocalValkey
from horde.server import ListenError, bind_socket

__all__ = ["Running", "Start", "UpOptions"]

_READY_SECONDS = 60.0
_MODEL_SECONDS = 180.0
"""A model of some gigabytes from a slow disk takes its time."""

_USER_KUDOS = 1_000_000
"""What the local user starts with: enough that nothing asked here is refused for want of kudos."""

_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What ``horde up`` was asked for.

    Attributes:
        state_dir: Folder of the database, the keys and the logs.
        front_port: Port of the front; 0 takes a free one.
        native_port: Port of the native Horde; 0 takes a free one.
        database_url: A PostgreSQL to use instead of the embedded one.
        redis_url: A Valkey or Redis to use instead of the embedded one.
        model: A GGUF file to serve instead of the bundled one.
        backend_url: A model server (OpenAI base URL) to use instead of the embedded one.
        sample: Whether a sample reply is streamed to the terminal.
    """

    state_dir: Path
    front_port: int = 8000
    native_port: int = 8001
    database_url: str | None = None
    redis_url: str | None = None
    model: Path | None = None
    backend_url: str | None = None
    sample: bool = True


@dataclass(frozen=True, slots=True)
class Running:
    """What a client needs to know of a Horde that runs.

    Attributes:
        base_url: OpenAI base URL of the front.
        api_key: Key of the local user.
        model: Model that the worker serves.
    """

    base_url: str
    api_key: str
    model: str


class Start:
    """One start of all parts.

    Args:
        options: What to start.
        state: The state folder, held.
        supervisor: Learns of every part that was started.
        steps: Shows what is being started.
    """

    def __init__(self, options: UpOptions, state: StateFolder, supervisor: Supervisor, steps: Steps) -> None:
        self._options = options
        self._state = state
        self._supervisor = supervisor
        self._steps = steps

    async def run(self) -> Running:
        """Start everything and wait until a worker is online.

        Raises:
            StartError: A part cannot be started; one sentence says why.
        """
        keys = self._state.keys()
        self._check_model()
        # Both ports are taken first: one in use is known before anything was started for nothing.
        with (
            _listen(self._options.native_port, "--native-port") as native,
            _listen(self._options.front_port, "--front-port") as front,
        ):
            addresses = Addresses(
                native_url=f"http://127.0.0.1:{native.getsockname()[1]}/api",
                front_url=f"http://127.0.0.1:{front.getsockname()[1]}/v1",
                logs=self._state.logs,
                images=self._state.images,
            )
            async with aiohttp.ClientSession(timeout=_PROBE_TIMEOUT) as http:
                try:
                    model = await self._run_all(addresses, keys, native, front, http)
                except* StartError as failures:
                    raise _first_of(failures) from None
        return Running(addresses.front_url, keys.user, model)

    async def _run_all(
        self,
        addresses: Addresses,
        keys: LocalKeys,
        native_listener: socket.socket,
        front_listener: socket.socket,
        http: aiohttp.ClientSession,
    ) -> str:
        async with asyncio.TaskGroup() as group:

            def begin[Result](work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
                return group.create_task(work, name=f"up - start {name}")

            # The Horde's modules take a second to import, which the database takes to start.
            begin(asyncio.to_thread(_import_native), "imports")
            database = begin(self._database(keys), "database")
            store = begin(self._stream_store(), "stream store")
            backend = begin(self._model_server(addresses), "model server")
            begin(self._native(addresses, native_listener, database, store, http), NATIVE)
            begin(self._front(addresses, front_listener, database, store, http), FRONT)
            worker = begin(self._worker(addresses, keys, backend, http), WORKER)
        return worker.result()

    def _check_model(self) -> None:
        if self._options.backend_url is not None:
            return
        try:
            path = self._options.model or bundled_model_path()
        except ModelServerError as error:
            raise StartError(str(error)) from error
        if not path.is_file():
            raise StartError(f"There is no model file {path}.")

    async def _database(self, keys: LocalKeys) -> str:
        """Return the address of a migrated database in which the users exist."""
        url = self._options.database_url
        if url is None:
            with self._steps.step("PostgreSQL"):
                server = LocalPostgres(self._state.path / "postgres")
                await server.start()
                self._supervisor.watch(server.process)
                url = await server.create_database("horde")
        with self._steps.step("database migrations and users"):
            await _prepare_database(url, keys)
        return url

    async def _stream_store(self) -> str:
        if self._options.redis_url is not None:
            return self._options.redis_url
        with self._steps.step("Valkey"):
            server = LocalValkey(self._state.path / "valkey")
            await server.start()
            self._supervisor.watch(server.process)
            return server.url

    async def _model_server(self, addresses: Addresses) -> str:
        """Return the OpenAI base URL of a model server that has loaded its model."""
        if self._options.backend_url is not None:
            return self._options.backend_url
        with self._steps.step("model server"):
            command = model_server_command(addresses, self._options.model)
            child = await self._start(MODEL_SERVER, command, _has_printed, _MODEL_SECONDS)
        return f"{child.last_log_lines(1)[0].strip()}/v1"

    async def _native(
        self,
        addresses: Addresses,
        listener: socket.socket,
        database: Awaitable[str],
        store: Awaitable[str],
        http: aiohttp.ClientSession,
    ) -> None:
        database_url, redis_url = await database, await store
        with self._steps.step(f"native Horde on {addresses.native_url}"):
            command = native_command(addresses, listener, database_url=database_url, redis_url=redis_url)
            ready_url = addresses.native_url.removesuffix("/api") + "/readyz"
            await self._start(NATIVE, command, lambda _: _answers(http, ready_url))
            listener.close()

    async def _front(
        self,
        addresses: Addresses,
        listener: socket.socket,
        database: Awaitable[str],
        store: Awaitable[str],
        http: aiohttp.ClientSession,
    ) -> None:
        # It does not need the database; but the Horde, which takes longest, does, and cores are few.
        _, redis_url = await database, await store
        with self._steps.step(f"front on {addresses.front_url}"):
            command = front_command(addresses, listener, redis_url=redis_url)
            ready_url = addresses.front_url.removesuffix("/v1") + "/healthz"
            await self._start(FRONT, command, lambda _: _answers(http, ready_url))
            listener.close()

    async def _worker(
        self,
        addresses: Addresses,
        keys: LocalKeys,
        backend: Awaitable[str],
        http: aiohttp.ClientSession,
    ) -> str:
        """Start the worker and return the model with which it is online.

        It need not wait for the Horde: it has the model server to look at, and its first call is answered when the
        Horde accepts it.
        """
        backend_url = await backend
        online: list[str] = []

        async def is_online(_: ChildProcess) -> bool:
            online.extend(await _chat_models(http, addresses.native_url))
            return bool(online)

        with self._steps.step("worker online"):
            await self._start(WORKER, worker_command(addresses, keys, backend_url=backend_url), is_online)
        return online[0]

    async def _start(
        self,
        name: str,
        command: Command,
        is_ready: Callable[[ChildProcess], Awaitable[bool]],
        seconds: float = _READY_SECONDS,
    ) -> ChildProcess:
        child = self._supervisor.start(name, command)
        await wait_until_ready(child, lambda: is_ready(child), seconds=seconds)
        self._supervisor.watch(child)
        return child


def _listen(port: int, option: str) -> socket.socket:
    try:
        listener = bind_socket("127.0.0.1", port)
    except ListenError as error:
        raise StartError(f'{error} Here: make run ARGS="{option} 0", or horde up {option} 0.') from error
    # From now on the kernel holds connections for the program that will accept them: a worker that is ready before
    # the Horde waits, and is not refused.
    listener.listen()
    return listener


def _first_of(failures: BaseExceptionGroup[StartError]) -> StartError:
    """Return one failure of several: those that waited for a part fail with it."""
    first = failures.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _import_native() -> None:
    importlib.import_module("horde.native.db.engine")
    importlib.import_module("horde.native.users")


async def _prepare_database(url: str, keys: LocalKeys) -> None:
    """Migrate the database and make the local users, or find them."""
    await asyncio.to_thread(_import_native)
    from horde.native.db.engine import create_pool, migrate  # noqa: PLC0415 - imported by the thread above
    from horde.native.users import ensure_user  # noqa: PLC0415

    try:
        await asyncio.to_thread(migrate, url)
        async with await create_pool(url, size=1) as pool:
            await ensure_user(pool, "local user", keys.user, kudos=_USER_KUDOS)
            await ensure_user(pool, "local worker owner", keys.worker)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        reason = str(error) or type(error).__name__
        raise StartError(f"The database cannot be used: {reason}.") from error


async def _has_printed(child: ChildProcess) -> bool:
    return any(line.startswith("http") for line in child.last_log_lines(1))


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.ok
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _chat_models(http: aiohttp.ClientSession, native_url: str) -> list[str]:
    """Return the models for which a worker is online."""
    try:
        async with http.get(f"{native_url}/v2/status/models", params={"type": "text"}) as response:
            models = await response.json() if response.ok else []
    except (aiohttp.ClientError, TimeoutError):
        return []
    return [model["name"] for model in models if model.get("chat")]
