"""What a test must not leave behind: tasks, sockets, Redis keys without an expiry."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import redis

__all__ = ["keys_without_expiry", "lingering_sockets", "open_sockets", "unfinished_tasks"]

_GRACE_SECONDS = 10.0
"""Time in which what is being closed may end: a cancelled task runs its ``finally``, a closed socket its callback."""


def open_sockets() -> frozenset[str]:
    """Return the sockets this process holds, by the kernel's names; empty where it does not tell (not Linux)."""
    folder = Path("/proc/self/fd")
    names = set()
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith("socket:"):
            names.add(target)
    return frozenset(names)


async def unfinished_tasks(
    known: set[asyncio.Task[object]],
    *,
    grace_seconds: float = _GRACE_SECONDS,
) -> list[str]:
    """Return names of tasks that outlived a test.

    Args:
        known: Tasks that were there before it.
        grace_seconds: Time in which they may still end.
    """

    def remaining() -> list[asyncio.Task[object]]:
        mine = asyncio.current_task()
        return [task for task in asyncio.all_tasks() if task is not mine and task not in known and not task.done()]

    await _settle(lambda: not remaining(), grace_seconds)
    return sorted(f"{task.get_name()}: {task.get_coro()!r}" for task in remaining())


async def lingering_sockets(known: frozenset[str], *, grace_seconds: float = _GRACE_SECONDS) -> frozenset[str]:
    """Return sockets that outlived a test.

    Args:
        known: Sockets that were open before it.
        grace_seconds: Time in which they may still be closed.
    """
    await _settle(lambda: not open_sockets() - known, grace_seconds)
    return open_sockets() - known


async def _settle(is_clean: Callable[[], bool], grace_seconds: float) -> None:
    deadline = asyncio.get_running_loop().time() + grace_seconds
    while not is_clean() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - the kernel sets no event
        await asyncio.sleep(0.005)


def keys_without_expiry(client: redis.Redis) -> list[str]:
    """Return the keys of a Redis server that would stay for ever."""
    # -1: no expiry; -2: it expired between the scan and now.
    lasting = [key for key in client.scan_iter(count=1000) if client.ttl(key) == -1]
    return sorted(key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in lasting)
