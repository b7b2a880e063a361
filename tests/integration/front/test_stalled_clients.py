"""Clients that ask and then read nothing, or vanish, on real sockets and with the program's own options."""

import asyncio
import socket
import sys
from pathlib import Path

import orjson
import pytest

from tests.support.front import chat_body
from tests.support.leaks import open_sockets
from tests.support.raw_http import chat_request, raw_client, served_front
from tests.support.scripted_horde import generation, scripted_horde, status
from tests.support.waiting import wait_until

_TCP_REPAIR = 19
"""Linux: a socket closed in this mode says nothing to its peer, as a machine that lost its power."""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the options of its sockets are Linux's")


@on_linux
@pytest.mark.rule("CAN-1", "ADM-3")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_reads_nothing_of_a_large_reply_loses_its_connection(*, stream: bool) -> None:
    loop = asyncio.get_running_loop()
    body = orjson.dumps(chat_body(stream=stream))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    async with scripted_horde() as horde:
        horde.play(status("replied", generation("word " * 200_000)))
        async with served_front(horde, write_timeout_seconds=0.5) as address:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)  # noqa: FBT003 - its only argument
                await loop.sock_connect(client, address)
                await loop.sock_sendall(client, head.encode() + body)
                await wait_until(lambda: horde.of("GET", "/status/"), description="the reply to be there")
                held = len(open_sockets())
                await wait_until(lambda: len(open_sockets()) < held, description="the connection to be given up")


@on_linux
@pytest.mark.rule("CAN-1", "CAN-2", "ADM-3")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_whose_machine_vanishes_has_its_request_cancelled(*, stream: bool) -> None:
    async with scripted_horde() as horde:
        horde.play(status("queued"))
        options = {"probe_seconds": 1, "unread_seconds": 1}
        times = {"keepalive_seconds": 0.2 if stream else 60.0, "nonstream_timeout_seconds": 60.0}
        async with served_front(horde, options=options, **times) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(chat_request(chat_body(stream=stream)))
            await wait_until(lambda: horde.of("GET", "/status/"), description="the request to wait")
            await vanish(writer)
            await wait_until(lambda: horde.cancelled, description="the request to be cancelled", seconds=30)


async def vanish(writer: asyncio.StreamWriter) -> None:
    """Close a connection without telling the other side."""
    connection = writer.get_extra_info("socket")
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    except PermissionError:
        writer.close()
        pytest.skip("closing a connection in silence takes the right to administer the network")
    writer.transport.abort()


@on_linux
@pytest.mark.rule("CAN-1")
async def test_the_kernel_asks_after_a_client_that_waits_in_silence() -> None:
    async with scripted_horde() as horde, served_front(horde) as address, raw_client(address) as client:
        await client.send(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await client.answer()).status == 200
        # Until the client's kernel has acknowledged the answer, the connection's timer is another.
        await wait_until(lambda: keepalive_timers(address[1]) == [True], description="the kernel to watch the client")


def keepalive_timers(port: int) -> list[bool]:
    """Return for each connection made to a port of this machine whether the kernel's keepalive timer runs for it."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    established = "01"
    return [row[5].startswith("02:") for row in rows if row[1].endswith(f":{port:04X}") and row[3] == established]
