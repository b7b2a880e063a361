"""The tasks that serve the whole process: named, cancelled together, and never silently dead."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

from loguru import logger

__all__ = ["BackgroundTasks"]


class BackgroundTasks:
    """Runs tasks for as long as it is entered; leaving it cancels them and waits.

    None of them ends by itself, so one that does is a defect: it is logged by name with its traceback.

    Args:
        on_failure: Called when one ended by itself; the program stops then rather than serve without it, and fails.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start one task.

        Args:
            name: Its name in logs and dumps.
            work: What it does until it is cancelled.
        """
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        logger.opt(exception=task.exception()).critical("The task {!r} ended; the front stops", task.get_name())
        self._on_failure()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
