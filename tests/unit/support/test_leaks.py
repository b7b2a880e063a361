import asyncio
import socket

from tests.support.leaks import lingering_sockets, open_sockets, unfinished_tasks


async def test_a_task_that_runs_on_is_named() -> None:
    known = asyncio.all_tasks()
    task = asyncio.create_task(asyncio.Event().wait(), name="front - forgotten")
    try:
        assert [name.partition(":")[0] for name in await unfinished_tasks(known, grace_seconds=0)] == [
            "front - forgotten"
        ]
    finally:
        task.cancel()


async def test_a_task_that_is_ending_is_waited_for() -> None:
    known = asyncio.all_tasks()
    asyncio.create_task(asyncio.Event().wait(), name="front - cancelled").cancel()
    assert await unfinished_tasks(known) == []


async def test_a_socket_that_stays_open_is_seen() -> None:
    known = open_sockets()
    with socket.socket():
        assert len(await lingering_sockets(known, grace_seconds=0)) == 1
    assert await lingering_sockets(known) == frozenset()
