"""All workers of one process: each lives and fails by itself, and all of them leave together."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from loguru import logger

from horde.worker.activity import WorkerActivity
from horde.worker.backoff import Backoff
from horde.worker.configuration import ConfiguredWorker
from horde.worker.daemon import WorkerDaemon, WorkerStartError
from horde.worker.metrics import WorkerMetrics, WorkerState

__all__ = ["WorkerFleet"]

_FIRST_PAUSE_SECONDS: Final = 15.0
_LONGEST_PAUSE_SECONDS: Final = 300.0

type MakeDaemon = Callable[[ConfiguredWorker, WorkerActivity], WorkerDaemon]


def _make_daemon(worker: ConfiguredWorker, activity: WorkerActivity) -> WorkerDaemon:
    return WorkerDaemon(worker.settings, label=worker.label, activity=activity)


def _make_backoff() -> Backoff:
    return Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)


class WorkerFleet:
    """Runs workers beside one another.

    One that cannot start is tried again while another one serves, unless no waiting can help it. When none serves and
    none is still starting, all of it ends: whoever started the program has to know.

    Args:
        workers: The workers; at least one.
        metrics: Told what happens.
        make_daemon: Makes one of them.
        make_backoff: Makes the pauses between the starts of one of them.
    """

    def __init__(
        self,
        workers: Sequence[ConfiguredWorker],
        *,
        metrics: WorkerMetrics | None = None,
        make_daemon: MakeDaemon = _make_daemon,
        make_backoff: Callable[[], Backoff] = _make_backoff,
    ) -> None:
        self._workers = tuple(workers)
        self._make_daemon = make_daemon
        metrics = metrics or WorkerMetrics()
        self._activities = {worker.label: WorkerActivity(worker.label, metrics) for worker in self._workers}
        self._make_backoff = make_backoff
        self._stopping = asyncio.Event()
        self._daemons: dict[str, WorkerDaemon] = {}
        self._failures: dict[str, WorkerStartError] = {}
        self._gave_up = False

    @property
    def activities(self) -> Sequence[WorkerActivity]:
        """What each worker is doing, in the order of the configuration."""
        return tuple(self._activities.values())

    def stop(self) -> None:
        """Take no more jobs, finish or fault what runs, then end; returns at once."""
        self._stopping.set()
        for daemon in self._daemons.values():
            daemon.stop()

    async def run(self) -> None:
        """Serve until stopped. Cancelling it instead drops what runs.

        Raises:
            WorkerStartError: No worker can serve.
        """
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(self._run_worker(worker), name=f"worker - {worker.label or 'the one'}")
        if self._gave_up:
            raise WorkerStartError(
                str(next(iter(self._failures.values())))
                if len(self._workers) == 1
                else f"None of {len(self._workers)} workers can serve; the lines above say why."
            )

    async def _run_worker(self, worker: ConfiguredWorker) -> None:
        backoff = self._make_backoff()
        with logger.contextualize(worker=worker.label) if worker.label else contextlib.nullcontext():
            while not self._stopping.is_set():
                failure = await self._serve(worker)
                if failure is None:
                    self._activities[worker.label].state = WorkerState.STOPPED
                    return
                self._note_failure(worker, failure)
                if failure.final:
                    return
                await self._pause(backoff.next_delay())

    async def _serve(self, worker: ConfiguredWorker) -> WorkerStartError | None:
        """Serve until stopped, or until it cannot be done."""
        self._failures.pop(worker.label, None)
        activity = self._activities[worker.label]
        activity.state = WorkerState.STARTING
        daemon = self._daemons[worker.label] = self._make_daemon(worker, activity)
        try:
            await daemon.run()
        except WorkerStartError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a fault of ours in one worker costs no other one
            logger.exception("The worker failed by a fault of its own.")
            return WorkerStartError(f"The worker failed by a fault of its own ({type(error).__name__}).", final=False)
        finally:
            del self._daemons[worker.label]
        return None

    def _note_failure(self, worker: ConfiguredWorker, failure: WorkerStartError) -> None:
        self._failures[worker.label] = failure
        activity = self._activities[worker.label]
        activity.state, activity.trouble = WorkerState.FAILED, str(failure)
        if len(self._workers) > 1:
            logger.error("{}", failure)
        if len(self._failures) == len(self._workers):
            self._gave_up = not self._stopping.is_set()
            self.stop()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
