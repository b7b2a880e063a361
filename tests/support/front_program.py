"""The front as a program of its own, over a Horde at an address, with settings a test chooses."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from tests.support.waiting import wait_until

__all__ = ["plain_environment", "running_front", "stop_front", "wait_alive"]

_HIDDEN = ("HORDE_", "OTEL_", "PYROSCOPE_", "AI_HORDE_", "DEPLOYMENT_", "LOGFIRE_")


def plain_environment() -> dict[str, str]:
    """Return this process's variables without those that the front reads."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}


@asynccontextmanager
async def running_front(horde_url: str, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a front on a free port and yield its process and address; it is killed if it was not stopped."""
    environment = plain_environment()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment |= {
            "HORDE_OAI_LISTEN_FD": str(listener.fileno()),
            "HORDE_OAI_HORDE_URLS": horde_url,
            "HORDE_OAI_DRAIN_ACCEPT_SECONDS": "0",
            "HORDE_OAI_POLL_SECONDS": "0.05",
            **settings,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "horde.oai",
            env=environment,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    try:
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def wait_alive(session: aiohttp.ClientSession, address: str) -> None:
    """Wait until the front answers."""

    async def is_alive() -> bool:
        async with session.get(f"{address}/healthz") as response:
            return response.status == 200

    await wait_until(is_alive, description="the front to be alive", seconds=60)


async def stop_front(process: asyncio.subprocess.Process) -> str:
    """Stop it by a signal, see that this is a clean end, and return what it wrote to standard error."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return errors.decode()
