"""Free threads ask for jobs: one long pop at a time, each answered exactly once.

One at a time is a rule, not a saving. Every pop lists the jobs that the worker holds, and a Horde takes back those
that are not listed; a pop that left before another's job arrived would not list it. A pop takes milliseconds when
there is work, so that a burst still fills every thread at once.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, NoReturn

from horde_sdk.worker.chat_declaration import ChatWorkerDeclaration
from loguru import logger

from horde.worker.activity import WorkerActivity
from horde.worker.backoff import Backoff
from horde.worker.declaration import WorkerOffer
from horde.worker.horde_client import BRIDGE_AGENT, AnswerTooLargeError, HordeAnswer, HordeAwayError, HordeClient
from horde.worker.job import Job, UnusableJobError, read_job

__all__ = ["JobBoard", "Popper", "WorkerRefusedError", "build_pop", "withdraw"]

_FINAL_CODES: Final = frozenset({"InvalidAPIKey", "AnonForbiddenWorker", "NotOwner"})
"""Refusals that no waiting changes."""

_QUICK_ANSWER_SECONDS: Final = 1.0
"""An empty answer that comes sooner was not held: the next pop waits a little."""

_WITHDRAW_SECONDS: Final = 2.0

_REMEMBERED_JOBS: Final = 1024


class WorkerRefusedError(Exception):
    """The Horde does not take this worker; the message says why."""


class JobBoard:
    """The jobs that the worker holds, and the threads that are free."""

    def __init__(self, threads: int) -> None:
        self._free = asyncio.Semaphore(threads)
        self._running: set[str] = set()
        self._recent: deque[str] = deque(maxlen=_REMEMBERED_JOBS)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> Collection[str]:
        """Ids of the jobs being served."""
        return self._running

    async def take_thread(self) -> None:
        """Wait for a free thread and take it."""
        await self._free.acquire()

    def return_thread(self) -> None:
        """Give back a thread that took no job."""
        self._free.release()

    def start(self, job_id: str) -> bool:
        """Note that the taken thread serves a job; False for a job that was given out to this worker before."""
        if job_id in self._running or job_id in self._recent:
            return False
        self._running.add(job_id)
        self._recent.append(job_id)
        self._idle.clear()
        return True

    def finish(self, job_id: str) -> None:
        """Note that a job is over; its thread is free."""
        self._running.discard(job_id)
        self._free.release()
        if not self._running:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no job is being served."""
        await self._idle.wait()


def build_pop(
    offer: WorkerOffer,
    name: str,
    *,
    pop_id: str,
    wait_seconds: float,
    running: Collection[str],
) -> dict[str, Any]:
    """Return the body of a pop."""
    return {
        "name": name,
        "models": [offer.model],
        "threads": offer.threads,
        "bridge_agent": BRIDGE_AGENT,
        "max_length": offer.limits.max_length,
        "max_context_length": offer.limits.max_context_length,
        **offer.declaration.to_pop_fields(),
        "wait_seconds": wait_seconds,
        "pop_id": pop_id,
        "running": sorted(running),
    }


async def withdraw(horde: HordeClient, offer: WorkerOffer, name: str, running: Collection[str]) -> None:
    """Tell the Horde, as well as may be, that this worker takes no more jobs.

    A pop that declares no chat jobs withdraws the declaration and, by its list of running jobs, hands back a job that
    an interrupted pop may have been given.
    """
    body = build_pop(offer, name, pop_id=str(uuid.uuid4()), wait_seconds=0, running=running)
    for key in ("model_id", "chat_features", "chat_limits", "image_transports"):
        body.pop(key, None)
    body |= ChatWorkerDeclaration(chat_jobs=False).to_pop_fields()
    try:
        async with asyncio.timeout(_WITHDRAW_SECONDS):
            await horde.pop(body, wait_seconds=0)
    except (TimeoutError, HordeAwayError) as error:
        logger.debug("The Horde was not told that the worker leaves: {}", error)


class Popper:
    """Pops whenever a thread is free and hands on what it gets.

    Args:
        horde: The Horde.
        board: Threads and running jobs.
        offer: What is declared.
        name: The worker's name.
        wait_seconds: Time for which the Horde may hold a pop.
        activity: Told how each pop went.
        start_job: Called with each job, on a taken thread.
        fault_job: Called with the id of each job that cannot be served.
    """

    def __init__(
        self,
        horde: HordeClient,
        board: JobBoard,
        offer: WorkerOffer,
        *,
        name: str,
        wait_seconds: float,
        activity: WorkerActivity,
        start_job: Callable[[Job], None],
        fault_job: Callable[[str], None],
    ) -> None:
        self._horde = horde
        self._board = board
        self._offer = offer
        self._name = name
        self._wait_seconds = wait_seconds
        self._activity = activity
        self._start_job = start_job
        self._fault_job = fault_job
        self._trouble = Backoff(0.5, 30.0)
        self._idling = Backoff(_QUICK_ANSWER_SECONDS, 10.0)
        self._away = False

    async def run(self) -> NoReturn:
        """Pop until cancelled.

        Raises:
            WorkerRefusedError: The Horde does not take this worker.
        """
        while True:
            await self._board.take_thread()
            started = False
            try:
                job = await self._pop_job()
                started = self._board.start(job.id)
                if started:
                    self._start_job(job)
                else:
                    logger.warning("The Horde gave out job {} twice; it is served once.", job.id)
                    await asyncio.sleep(self._trouble.next_delay())
            finally:
                if not started:
                    self._board.return_thread()

    async def _pop_job(self) -> Job:
        """Pop until there is a job."""
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            answer = await self._pop_once()
            try:
                job = read_job(answer.body, self._offer)
            except UnusableJobError as error:
                logger.warning("{}", error)
                if error.job_id is not None:
                    self._fault_job(error.job_id)
                await asyncio.sleep(self._trouble.next_delay())
                continue
            if job is not None:
                self._trouble.reset()
                self._idling.reset()
                return job
            if loop.time() - asked_at < _QUICK_ANSWER_SECONDS:
                await asyncio.sleep(self._idling.next_delay())
            else:
                self._idling.reset()

    async def _pop_once(self) -> HordeAnswer:
        """Send one pop until it is answered, always under the same id.

        Only an answer too large to read is not asked for again: under another id the Horde sees, by the jobs that are
        listed as running, that its job is not served here and gives it to somebody else.
        """
        pop_id = str(uuid.uuid4())
        while True:
            body = build_pop(
                self._offer,
                self._name,
                pop_id=pop_id,
                wait_seconds=self._wait_seconds,
                running=self._board.running,
            )
            retry_after = None
            try:
                answer = await self._horde.pop(body, wait_seconds=self._wait_seconds)
            except HordeAwayError as error:
                retry_after = error.retry_after
                if isinstance(error, AnswerTooLargeError):
                    pop_id = str(uuid.uuid4())
                self._activity.popped("away")
                self._note_away(str(error))
            else:
                if answer.ok:
                    self._activity.popped("empty" if answer.body.get("id") is None else "job")
                    self._note_back()
                    return answer
                self._activity.popped("refused")
                if answer.rc in _FINAL_CODES:
                    raise WorkerRefusedError(f"The Horde refuses this worker ({answer.rc}): {answer.message}")
                self._note_away(f"it refused a pop, {answer.rc or answer.status}: {answer.message}")
            await asyncio.sleep(self._trouble.next_delay(at_least=retry_after))

    def _note_away(self, reason: str) -> None:
        if not self._away:
            self._away = True
            self._activity.trouble = f"The Horde gives no jobs ({reason})."
            logger.warning("The Horde at {} gives no jobs ({}); trying until it does.", self._horde.root, reason)

    def _note_back(self) -> None:
        if self._away:
            self._away = False
            self._trouble.reset()
            logger.info("The Horde at {} is back.", self._horde.root)
