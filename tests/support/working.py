"""A worker in the test's own event loop, and the real model server beside it."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

from horde.worker.daemon import WorkerDaemon
from horde.worker.settings import WorkerSettings

__all__ = ["WORKER_KEY", "make_worker", "running_model_server", "working"]

WORKER_KEY = "worker-key"

_STOP_SECONDS = 30.0


def make_worker(horde_url: str, backend_url: str, **settings: object) -> WorkerDaemon:
    """Return a worker that was not started; it takes no time to drain."""
    given = {"horde_url": horde_url, "backend_url": backend_url, "api_key": WORKER_KEY, "drain_seconds": 0.0}
    return WorkerDaemon(WorkerSettings.model_validate({**given, **settings}))


@contextlib.asynccontextmanager
async def working(horde_url: str, backend_url: str, **settings: object) -> AsyncIterator[WorkerDaemon]:
    """Run a worker and stop it afterwards, as a signal would.

    Args:
        horde_url: The Horde to serve.
        backend_url: The model server's OpenAI base URL.
        settings: Further settings of the worker, by field name.
    """
    daemon = make_worker(horde_url, backend_url, **settings)
    running = asyncio.create_task(daemon.run(), name="test - worker")
    try:
        yield daemon
    finally:
        daemon.stop()
        async with asyncio.timeout(_STOP_SECONDS):
            await running


@contextlib.contextmanager
def running_model_server(*arguments: str) -> Iterator[str]:
    """Run the project's model server with the bundled model and yield its OpenAI base URL.

    Args:
        arguments: Further options, such as ``--slots=2``.
    """
    command = [sys.executable, "-m", "horde.local.model_server", "--port=0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the model server did not start; what it said is above"
            yield f"{url}/v1"
        finally:
            process.terminate()
