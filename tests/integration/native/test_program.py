"""The Horde as a program: how it starts, stops and says what is wrong."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
import orjson

from tests.support.raw_http import raw_client
from tests.support.waiting import wait_until

_WITH_A_SWEEPER_THAT_FAILS = """
import sys

import horde.native.sweeper
from horde.native.__main__ import main


async def fail(sweeper):
    raise ZeroDivisionError


horde.native.sweeper.Sweeper.sweep = fail
sys.exit(main())
"""


async def _start(
    settings: Mapping[str, str], *, descriptor: int | None = None, program: Sequence[str] = ("-m", "horde.native")
) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HORDE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        env={**environment, **settings},
        stderr=asyncio.subprocess.PIPE,
        pass_fds=[] if descriptor is None else [descriptor],
    )


async def _end(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


@asynccontextmanager
async def _running(database_url: str, redis_url: str) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """Run a Horde on an inherited socket, wait until it is ready, and yield its port and program."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = {
            "HORDE_NATIVE_DATABASE_URL": database_url,
            "HORDE_NATIVE_REDIS_URL": redis_url,
            "HORDE_NATIVE_LISTEN_FD": str(listener.fileno()),
        }
        process = await _start(settings, descriptor=listener.fileno())
    try:
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                    return response.status == 200

            await wait_until(is_ready, description="the Horde to be ready", seconds=60, interval_seconds=0.1)
        yield port, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_it_migrates_serves_on_an_inherited_socket_and_ends_cleanly(database_url: str, redis_url: str) -> None:
    async with _running(database_url, redis_url) as (_, process):
        process.send_signal(signal.SIGTERM)
        code, errors = await _end(process)
    assert code == 0, errors
    assert "ERROR" not in errors, errors


async def test_what_is_no_http_gets_its_own_form_of_error(migrated_database_url: str, redis_url: str) -> None:
    async with _running(migrated_database_url, redis_url) as (port, process):
        async with raw_client(("127.0.0.1", port)) as client:
            await client.send(b"GET /api/v2/status/heartbeat HTTP/1.1\r\nX-Nul: \x00\r\n\r\n")
            unreadable = await client.answer()
        async with raw_client(("127.0.0.1", port)) as client:
            await client.send(b"GET /api/v2/status/heartbeat HTTP/1.1\r\nX-Long: " + b"a" * 40_000 + b"\r\n\r\n")
            too_long = await client.answer()
        process.send_signal(signal.SIGTERM)
        _, errors = await _end(process)
    assert (unreadable.status, orjson.loads(unreadable.body)["rc"]) == (400, "BadRequest")
    assert (too_long.status, orjson.loads(too_long.body)["rc"]) == (431, "RequestTooLarge")
    assert "Traceback" not in errors


async def test_wrong_settings_end_it_with_2(database_url: str) -> None:
    for settings in ({}, {"HORDE_NATIVE_DATABASE_URL": database_url, "HORDE_NATIVE_REDISURL": "x"}):
        code, errors = await _end(await _start(settings))
        assert code == 2
        assert "HORDE_NATIVE_" in errors


async def test_a_failed_start_ends_it_with_3_and_tells_no_password(unused_tcp_port: int) -> None:
    nowhere = f"postgresql://user:secret@127.0.0.1:{unused_tcp_port}/none"
    code, errors = await _end(await _start({"HORDE_NATIVE_DATABASE_URL": nowhere, "HORDE_NATIVE_PORT": "0"}))
    assert code == 3
    assert "The database of HORDE_NATIVE_DATABASE_URL cannot be used" in errors
    assert "secret" not in errors
    assert "Traceback" not in errors

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, errors = await _end(await _start({"HORDE_NATIVE_DATABASE_URL": nowhere, "HORDE_NATIVE_PORT": port}))
    assert code == 3
    assert "in use" in errors


async def test_a_part_that_fails_ends_it_with_1(migrated_database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = {
            "HORDE_NATIVE_DATABASE_URL": migrated_database_url,
            "HORDE_NATIVE_LISTEN_FD": str(listener.fileno()),
        }
        process = await _start(settings, descriptor=listener.fileno(), program=("-c", _WITH_A_SWEEPER_THAT_FAILS))
    code, errors = await _end(process)
    assert code == 1, errors
    assert "The task 'native - sweeper' failed" in errors
