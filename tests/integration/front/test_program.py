"""The front as a program: how it ends, and what its exit code says."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from tests.support.waiting import wait_until

_DIES = """
import asyncio, sys
from horde.oai import __main__ as program
from horde.oai.cancel import Cancels

async def die(self):
    raise RuntimeError("a defect")

Cancels.run = die
sys.exit(program.main([]))
"""
"""The program with a task that dies, as a defect would make it."""


@asynccontextmanager
async def front_program(*arguments: str, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the front on a free port and yield its process and address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HORDE_")}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment |= {
            "HORDE_OAI_LISTEN_FD": str(listener.fileno()),
            "HORDE_OAI_HORDE_URLS": "http://127.0.0.1:9/api",
            **settings,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=environment, stderr=asyncio.subprocess.PIPE, pass_fds=[listener.fileno()]
        )
    try:
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def wait_alive(address: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def is_alive() -> bool:
            async with session.get(f"{address}/healthz") as response:
                return response.status == 200

        await wait_until(is_alive, description="the front to be alive", seconds=60)


async def test_a_signal_ends_it_with_0() -> None:
    async with front_program("-m", "horde.oai", HORDE_OAI_DRAIN_ACCEPT_SECONDS="0") as (process, address):
        await wait_alive(address)
        process.send_signal(signal.SIGTERM)
        code, errors = await ended(process)
    assert code == 0, errors
    assert "ERROR" not in errors, errors


async def test_a_task_that_died_ends_it_with_1() -> None:
    async with front_program("-c", _DIES, HORDE_OAI_DRAIN_ACCEPT_SECONDS="0") as (process, _):
        code, errors = await ended(process)
    assert code == 1, errors
    assert "front - cancel retries" in errors
    assert "a defect" in errors
