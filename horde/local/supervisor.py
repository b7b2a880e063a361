"""Everything that runs on this machine for ``horde up``: watched while it runs, stopped in order, once."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from horde.local.errors import PartCrashedError
from horde.local.process import ChildProcess, Command

__all__ = [
    "FRONT",
    "MODEL_SERVER",
    "NATIVE",
    "POSTGRES",
    "STOP_ORDER",
    "VALKEY",
    "WORKER",
    "Supervisor",
    "first_to_end",
]

FRONT, WORKER, NATIVE = "front", "worker", "native Horde"
MODEL_SERVER, VALKEY, POSTGRES = "model server", "Valkey", "PostgreSQL"

STOP_ORDER = (FRONT, WORKER, NATIVE, MODEL_SERVER, VALKEY, POSTGRES)
"""Clients before what they call: nothing is stopped while something that runs still needs it."""

_STOP_SECONDS = 30.0
"""Longest time one part has to stop in good order; the front's and the worker's own limits are shorter."""


class Supervisor:
    """An async context manager around running parts; leaving it stops them all.

    Args:
        on_stopped: Told the name of each part that was stopped, and the seconds it took.
    """

    def __init__(self, on_stopped: Callable[[str, float], None]) -> None:
        self._on_stopped = on_stopped
        self._parts: dict[str, ChildProcess] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._crashed = asyncio.Event()
        self._crash: PartCrashedError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop_all()

    def start(self, name: str, command: Command) -> ChildProcess:
        """Start a part that is stopped with the rest; call :meth:`watch` once it is ready.

        Raises:
            StartError: It cannot be executed.
        """
        child = ChildProcess.start(name, command)
        self._parts[name] = child
        return child

    def watch(self, child: ChildProcess) -> None:
        """Notice when a part that is ready ends by itself; one started elsewhere is stopped with the rest too."""
        self._parts[child.name] = child
        self._watchers.append(asyncio.create_task(self._wait_for_crash(child), name=f"up - watch {child.name}"))

    async def crash(self) -> PartCrashedError:
        """Wait until a part ends by itself, and return which, with its last log lines."""
        await self._crashed.wait()
        assert self._crash is not None  # noqa: S101 - set before the event
        return self._crash

    async def stop_all(self) -> None:
        """Stop every part in order; parts that ended already are passed over."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        names = sorted(self._parts, key=STOP_ORDER.index)
        try:
            for name in names:
                await self._stop(self._parts[name])
        finally:
            self.kill_all()

    def kill_all(self) -> None:
        """End every part at once, in no order: the person does not want to wait."""
        for child in self._parts.values():
            child.kill()

    async def _stop(self, child: ChildProcess) -> None:
        if child.returncode is not None:
            return
        began = time.monotonic()
        await child.stop(grace_seconds=_STOP_SECONDS)
        self._on_stopped(child.name, time.monotonic() - began)

    async def _wait_for_crash(self, child: ChildProcess) -> None:
        code = await child.wait()
        if self._crash is None:
            self._crash = PartCrashedError(child.name, code, child.last_log_lines())
            self._crashed.set()


async def first_to_end[Result](*works: Coroutine[Any, Any, Result]) -> Result:
    """Run coroutines side by side and return what the first one to end returns, after cancelling the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
