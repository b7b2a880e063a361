"""Programs of the project as processes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["ended", "program"]

_EXIT_SECONDS = 60.0


@asynccontextmanager
async def program(module: str, *arguments: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a module of ours and kill it afterwards if it still runs.

    Args:
        module: What ``python -m`` takes.
        arguments: Its arguments.
        variables: Variables of its environment, beside those of the tests.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Wait for the end of a program; return its exit code and what it said."""
    async with asyncio.timeout(_EXIT_SECONDS):
        output, _ = await process.communicate()
    return process.returncode, output.decode()
