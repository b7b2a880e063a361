"""The worker's life: find out what serves, offer it, serve jobs, and leave in good order.

Jobs live in a task group of their own: a Horde or a model server that goes away ends the popping, never a running job.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from loguru import logger

from horde.worker.activity import WorkerActivity
from horde.worker.backend_health import BackendHealth
from horde.worker.backends import recognise_backend
from horde.worker.backends.base import BackendError, BackendProfile, BackendUnavailableError, ChatBackend
from horde.worker.backends.openai_compatible import BackendLocation, create_backend_session
from horde.worker.backoff import Backoff
from horde.worker.built_in import BuiltInBackendError, open_backend
from horde.worker.declaration import DeclarationError, OperatorLimits, WorkerOffer, build_offer
from horde.worker.horde_client import HordeClient
from horde.worker.job import Job, JobRunner
from horde.worker.metrics import WorkerState
from horde.worker.poppers import JobBoard, Popper, WorkerRefusedError, withdraw
from horde.worker.schedule import ServingHours, WallClock
from horde.worker.settings import WorkerSettings

__all__ = ["WorkerDaemon", "WorkerStartError", "backend_location", "open_configured_backend", "operator_limits"]

_ABANDON_SECONDS: Final = 5.0
"""Time that abandoned jobs have to be faulted, before their tasks are cancelled."""

_SPARE_CONNECTIONS: Final = 4
"""Connections to the Horde beside the two that each running job may need: a pop and farewells."""


class WorkerStartError(Exception):
    """The worker cannot serve; the message is one sentence for its operator.

    Attributes:
        final: Waiting changes nothing.
    """

    def __init__(self, message: str, *, final: bool = True) -> None:
        super().__init__(message)
        self.final = final


class WorkerDaemon:
    """One worker: one model server, one model, one name on one Horde.

    Args:
        settings: The settings.
        label: The worker's name in the configuration; empty for one without.
        clock: The time of day, which its schedule goes by.
        activity: Told what happens.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        label: str = "",
        clock: WallClock | None = None,
        activity: WorkerActivity | None = None,
    ) -> None:
        self._settings = settings
        self._label = label
        self._activity = activity or WorkerActivity(label)
        self._hours = ServingHours(settings.read_schedule(), clock or WallClock())
        self._stopping = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._health = BackendHealth(self._interrupted.set)
        self._job_tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Take no more jobs, finish or fault what runs, then end; returns at once."""
        self._stopping.set()
        self._interrupted.set()

    async def run(self) -> None:
        """Serve until stopped. Cancelling it instead drops what runs.

        Raises:
            WorkerStartError: The model server cannot be used, or the Horde does not take this worker.
        """
        await self._rest()
        try:
            async with open_configured_backend(self._settings, self._stopping) as location:
                if location is not None:
                    await self._serve_backend(location)
        except BuiltInBackendError as error:
            raise WorkerStartError(str(error)) from error

    async def _serve_backend(self, location: BackendLocation) -> None:
        async with create_backend_session(location) as session:
            found = await self._find_backend(lambda: recognise_backend(session, location))
            if found is None:
                return
            backend, offer = found
            name = self._settings.worker_name(offer.model, self._label)
            connections = 2 * offer.threads + _SPARE_CONNECTIONS
            key = self._settings.api_key.get_secret_value()
            async with HordeClient(self._settings.horde_url, key, connection_limit=connections) as horde:
                logger.info("Serving {} as {} on {}", offer.model, name, horde.root)
                await self._serve(horde, backend, offer, name)

    async def _serve(self, horde: HordeClient, backend: ChatBackend, offer: WorkerOffer, name: str) -> None:
        board = JobBoard(offer.threads)
        refusal: WorkerRefusedError | None = None
        async with asyncio.TaskGroup() as jobs:
            while not self._stopping.is_set():
                runner = JobRunner(
                    horde,
                    backend,
                    offer,
                    health=self._health,
                    activity=self._activity,
                    picture_origins=self._settings.picture_origins,
                )
                refusal = await self._pop_until_interrupted(horde, board, offer, runner, name, jobs)
                await withdraw(horde, offer, name, board.running)
                if refusal is not None:
                    break
                rested = await self._rest()
                if self._health.is_down or rested:
                    offer = await self._wait_for_backend(backend, offer, runner)
            await self._drain(board)
        if refusal is not None:
            raise WorkerStartError(str(refusal))

    async def _pop_until_interrupted(
        self,
        horde: HordeClient,
        board: JobBoard,
        offer: WorkerOffer,
        runner: JobRunner,
        name: str,
        jobs: asyncio.TaskGroup,
    ) -> WorkerRefusedError | None:
        """Pop until the worker stops or the model server is down; return the Horde's refusal when that ended it."""

        def start_job(job: Job) -> None:
            task = jobs.create_task(self._run_job(runner, board, job), name=f"worker - job {job.id}")
            self._job_tasks.add(task)
            task.add_done_callback(self._job_tasks.discard)

        def fault_job(job_id: str) -> None:
            jobs.create_task(runner.fault_unusable(job_id), name=f"worker - fault {job_id}")

        popper = Popper(
            horde,
            board,
            offer,
            name=name,
            wait_seconds=self._settings.wait_seconds,
            activity=self._activity,
            start_job=start_job,
            fault_job=fault_job,
        )
        refusal: WorkerRefusedError | None = None
        self._activity.state = WorkerState.SERVING
        try:
            async with asyncio.TaskGroup() as group:
                popping = group.create_task(popper.run(), name="worker - popper")
                closing = group.create_task(self._interrupt_when_closed(), name="worker - schedule")
                await self._interrupted.wait()
                popping.cancel()
                closing.cancel()
        except* WorkerRefusedError as errors:
            refusal = next(error for error in errors.exceptions if isinstance(error, WorkerRefusedError))
        return refusal

    async def _rest(self) -> bool:
        """Wait for the hours in which to serve, or the stop; return whether there was a wait."""
        before, self._activity.state = self._activity.state, WorkerState.RESTING
        rested = await self._hours.wait_until_open(self._stopping)
        self._activity.state = before
        return rested

    async def _interrupt_when_closed(self) -> None:
        await self._hours.wait_until_closed()
        self._interrupted.set()

    async def _run_job(self, runner: JobRunner, board: JobBoard, job: Job) -> None:
        try:
            await runner.run(job, self._abandoned)
        except Exception:  # noqa: BLE001 - the outermost edge of a job's task: a fault of ours costs this job only
            logger.exception("Job {} failed by a fault of the worker.", job.id)
            await runner.fault_unusable(job.id)
        finally:
            board.finish(job.id)

    async def _drain(self, board: JobBoard) -> None:
        self._activity.state = WorkerState.STOPPING
        if board.running:
            logger.info("Stopping: {} running jobs have {:g} s.", len(board.running), self._settings.drain_seconds)
        if await _within(self._settings.drain_seconds, board):
            return
        logger.warning("{} jobs did not finish in time and are faulted.", len(board.running))
        self._abandoned.set()
        if not await _within(_ABANDON_SECONDS, board):
            for task in self._job_tasks:
                task.cancel()

    async def _find_backend(
        self, recognise: Callable[[], Awaitable[ChatBackend]]
    ) -> tuple[ChatBackend, WorkerOffer] | None:
        """Probe until the model server answers; None when the worker is stopped before.

        Raises:
            WorkerStartError: It did not answer in time, or what was found cannot be offered.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.backend_start_seconds
        backoff = Backoff(0.25, 5.0)
        while not self._stopping.is_set():
            try:
                backend = await recognise()
                profile = await backend.probe()
                offer = build_offer(profile, operator_limits(self._settings))
            except BackendUnavailableError as error:
                delay = backoff.next_delay()
                if asyncio.get_running_loop().time() + delay > deadline:
                    raise WorkerStartError(
                        f"{error} Start it, or set HORDE_WORKER_BACKEND_URL to where it is.", final=False
                    ) from error
                await self._pause(delay)
            except (BackendError, DeclarationError) as error:
                raise WorkerStartError(str(error)) from error
            else:
                _tell_offer(profile, offer)
                self._activity.model, self._activity.threads = offer.model, offer.threads
                return backend, offer
        return None

    async def _wait_for_backend(self, backend: ChatBackend, offer: WorkerOffer, runner: JobRunner) -> WorkerOffer:
        """Probe until the model server is there with the same model, or the worker is stopped.

        After a rest too: nobody looked after it meanwhile. A first probe that fails too ends the jobs whose
        connections have not noticed: somebody waits for each, and another worker can serve it.
        """
        if self._health.is_down:
            logger.warning("The model server is away: no jobs are taken until it is back.")
        backoff = Backoff(0.5, 30.0)
        self._activity.state = WorkerState.AWAY
        if self._health.is_down:
            await self._pause(self._health.pause_before_probe())
        while not self._stopping.is_set():
            try:
                profile = await backend.probe()
                found = build_offer(profile, operator_limits(self._settings))
            except (BackendError, DeclarationError) as error:
                logger.debug("The model server is still away: {}", error)
                self._activity.trouble = str(error)
                runner.lose_backend()
            else:
                if found.model == offer.model:
                    if self._health.is_down:
                        logger.info("The model server is back.")
                        self._health.note_back()
                    if not self._stopping.is_set():
                        self._interrupted.clear()
                    return found
                logger.debug("The model server serves {} now, not {}.", found.model, offer.model)
            await self._pause(backoff.next_delay())
        return offer

    async def _pause(self, seconds: float) -> None:
        """Wait, or until the worker is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return


def open_configured_backend(
    settings: WorkerSettings, stopping: asyncio.Event
) -> AbstractAsyncContextManager[BackendLocation | None]:
    """Return the model server that is configured, as :func:`horde.worker.built_in.open_backend` yields it.

    Args:
        settings: The worker's settings.
        stopping: Set when the worker stops.
    """
    return open_backend(
        backend_location(settings),
        slots=settings.threads,
        context_length=settings.context_length,
        start_seconds=settings.backend_start_seconds,
        stopping=stopping,
    )


def backend_location(settings: WorkerSettings) -> BackendLocation:
    """Return where a worker's model server is."""
    key = settings.backend_api_key
    return BackendLocation(
        base_url=settings.backend_url,
        api_key=None if key is None else key.get_secret_value(),
        model=settings.model,
        stall_seconds=settings.backend_stall_seconds,
    )


def operator_limits(settings: WorkerSettings) -> OperatorLimits:
    """Return what a worker's operator set."""
    return OperatorLimits(
        public_model=settings.public_model,
        threads=settings.threads,
        context_length=settings.context_length,
        max_length=settings.max_length,
        exclude=settings.exclude,
    )


async def _within(seconds: float, board: JobBoard) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await board.wait_until_idle()
    except TimeoutError:
        return False
    return True


def _tell_offer(profile: BackendProfile, offer: WorkerOffer) -> None:
    """Log what was found and what will be declared because of it."""
    for finding in profile.findings:
        logger.info("{}: {}", profile.kind, finding)
    logger.info(
        "Declaring {} threads, prompts up to {} tokens, replies up to {} tokens, {}",
        offer.threads,
        offer.limits.max_context_length,
        offer.limits.max_length,
        ", ".join(sorted(offer.declaration.features)) or "no features",
    )
