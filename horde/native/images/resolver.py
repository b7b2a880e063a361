"""Name resolution for the fetching of pictures, in threads of its own.

A name server that a client names may answer as slowly as it likes, and a thread that waits for it cannot be stopped.
These threads are not those that the rest of the Horde shares; while all of them wait, further fetches run out of time.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["SystemResolver"]

_MAX_ADDRESSES: Final = 8
"""Addresses of a name that are tried."""


class SystemResolver(AbstractResolver):
    """Resolves names as the system does; a name's addresses are asked for once and not kept.

    Args:
        threads: Names resolved at a time.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="image names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: It has none, or they could not be asked for.
        """
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._threads, _look_up, host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in answers[:_MAX_ADDRESSES]
            if kind in {socket.AF_INET, socket.AF_INET6}
        ]

    async def close(self) -> None:
        """Forget names that wait for a thread; a thread that waits for an answer ends with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: socket.AddressFamily) -> Sequence[Any]:
    return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
