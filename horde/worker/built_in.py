"""The built-in backend ``llama_cpp``: the project's model server, started by the worker and stopped with it.

It is a program of its own (``python -m horde.local.model_server``, from ``horde-oai[local]``), run by its command, so
that a fault in native code ends that process alone. It ends when its standard input does: however the worker dies,
nothing is left behind. One that ends by itself is started again at the same address.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Final

from loguru import logger

from horde.worker.backends.connection import BackendLocation
from horde.worker.backoff import Backoff

__all__ = ["BUILT_IN", "BuiltInBackendError", "is_built_in", "model_path_of", "open_backend"]

BUILT_IN: Final = "llama_cpp"
"""What stands for the address of a model server: this alone, or this, a colon and the path of a GGUF file."""

_PROGRAM: Final = "horde.local.model_server"

_DEFAULT_CONTEXT: Final = 4096
_STOP_SECONDS: Final = 5.0
_MAX_ADDRESS_BYTES: Final = 256


class BuiltInBackendError(Exception):
    """The model server could not be started; the message is one sentence for the operator."""


def model_path_of(backend: str) -> Path | None:
    """Return the file that a built-in backend serves; None for the bundled model.

    Args:
        backend: ``llama_cpp``, or ``llama_cpp:`` and a path.
    """
    path = backend.removeprefix(BUILT_IN).removeprefix(":")
    return Path(path).expanduser() if path else None


def is_built_in(backend: str) -> bool:
    """Whether a backend is built in, and not the address of a server."""
    return backend == BUILT_IN or backend.startswith(f"{BUILT_IN}:")


@contextlib.asynccontextmanager
async def open_backend(
    location: BackendLocation,
    *,
    slots: int | None,
    context_length: int | None,
    start_seconds: float,
    stopping: asyncio.Event,
) -> AsyncIterator[BackendLocation | None]:
    """Yield where the model server is, started here when it is the built-in one and stopped at the end.

    Args:
        location: Where the operator said it is.
        slots: Replies of the built-in one at the same time; 1 when None.
        context_length: Tokens of each of them; 4,096 when None.
        start_seconds: Time that it has to load its model.
        stopping: Set when the worker stops; what is still starting is given up, and None is yielded.

    Raises:
        BuiltInBackendError: It did not start.
    """
    if not is_built_in(location.base_url):
        yield location
        return
    server = _BuiltInServer(
        model_path_of(location.base_url), slots=slots or 1, context=context_length or _DEFAULT_CONTEXT
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        address = await _unless_stopped(server.start(start_seconds), stopping)
        if address is None:
            yield None
            return
        watching = asyncio.create_task(server.keep_running(), name="worker - model server")
        stack.push_async_callback(_end, watching)
        yield replace(location, base_url=f"{address}/v1")


class _BuiltInServer:
    def __init__(self, model: Path | None, *, slots: int, context: int) -> None:
        self._arguments = [f"--slots={slots}", f"--context={context}", "--until-input-ends"]
        self._arguments += [] if model is None else [f"--model={model}"]
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, seconds: float | None) -> str:
        """Start the program and return its address once it serves.

        Raises:
            BuiltInBackendError: It ended, or did not serve in time.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _PROGRAM,
            f"--port={self._port}",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the worker's: running jobs need their model to the end.
            limit=_MAX_ADDRESS_BYTES,
        )
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            async with asyncio.timeout(seconds):
                address = (await process.stdout.readline()).decode().strip()
        except TimeoutError as error:
            raise BuiltInBackendError(
                f"The model was not loaded in {seconds or 0:g} s; HORDE_WORKER_BACKEND_START_SECONDS gives it more."
            ) from error
        if not address:
            raise BuiltInBackendError("The built-in model server did not start; it said why on standard error.")
        self._port = int(address.rpartition(":")[2])
        return address

    async def keep_running(self) -> None:
        """Start the program again, at the same address, each time that it ends by itself."""
        backoff = Backoff(0.5, 30.0)
        while True:
            if self._process is not None:
                code = await _finish(self._process)
                logger.warning("The built-in model server ended with code {}; it is started again.", code)
            try:
                await self.start(None)
            except BuiltInBackendError as error:
                logger.warning("{}", error)
                await asyncio.sleep(backoff.next_delay())
            else:
                backoff.reset()

    async def stop(self) -> None:
        """End the program and wait for it."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
        await _finish(process)


async def _finish(process: asyncio.subprocess.Process) -> int:
    """Wait for a program's end, close its pipes, and return its exit code."""
    if process.stdout is not None:
        await process.stdout.read()
    code = await process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return code


async def _unless_stopped(starting: Coroutine[None, None, str], stopping: asyncio.Event) -> str | None:
    """Return what is being started, or None when the worker is stopped before."""
    task = asyncio.create_task(starting, name="worker - model server start")
    stopped = asyncio.create_task(stopping.wait(), name="worker - model server start given up")
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
