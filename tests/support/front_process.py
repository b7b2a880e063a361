"""The front as a program of its own, which a test kills, pauses or asks to stop."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from tests.support.waiting import wait_until

__all__ = ["FrontProcess", "front_process"]

_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FrontProcess:
    """A running front.

    Attributes:
        process: The program.
        url: Its address, without a path.
    """

    process: asyncio.subprocess.Process
    url: str

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Wait until it ended; return its exit code and what it logged."""
        async with asyncio.timeout(_START_SECONDS):
            _, log = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, log.decode()

    async def kill(self) -> str:
        """Kill it, as a machine that fails does, and return what it logged."""
        self.process.kill()
        return (await self.ended())[1]


@contextlib.asynccontextmanager
async def front_process(horde_url: str, **settings: object) -> AsyncIterator[FrontProcess]:
    """Run a front on a free port; it is ready, and killed at the end when it still runs.

    Args:
        horde_url: The Horde, ending in ``/api``.
        settings: Settings by field name.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HORDE_")}
    given = {"horde_urls": horde_url, "drain_accept_seconds": 0, **settings}
    environment |= {f"HORDE_OAI_{name.upper()}": str(value) for name, value in given.items()}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "horde.oai",
            env=environment | {"HORDE_OAI_LISTEN_FD": str(listener.fileno())},
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    front = FrontProcess(process, url)
    try:
        await _ready(url)
        yield front
    finally:
        if process.returncode is None:
            await front.kill()


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def is_ready() -> bool:
            async with session.get(f"{url}/readyz") as response:
                return response.status == 200

        await wait_until(is_ready, description="the front to be ready", seconds=_START_SECONDS)
