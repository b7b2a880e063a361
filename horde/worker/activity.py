"""What a worker is doing, for those who look: the terminal's view and the metrics.

Everything is written by the worker's event loop and costs it an assignment; who looks may do so from another thread.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from horde_sdk.worker.chat_declaration import ChatFaultReason, ChatUsage

from horde.worker.horde_client import ProgressVerdict
from horde.worker.metrics import JobOutcome, PopOutcome, WorkerMetrics, WorkerState

__all__ = ["JobActivity", "WorkerActivity"]

_LABEL_OF_THE_ONE: Final = "worker"
"""Label of a worker that has none in the configuration."""


class WorkerActivity:
    """One worker's state, its jobs, and what it earned.

    Attributes:
        label: Its name in the configuration.
        state: What it does.
        model: Public name of its model; empty until known.
        threads: Jobs that it can serve at a time; 0 until known.
        running: The jobs that it serves, by id.
        ended: How many jobs ended, by how.
        pieces: Pieces of text that came, usually a token each.
        reply_tokens: Tokens of the replies that were taken.
        kudos: Kudos earned.
        trouble: The last sentence about something that went wrong; empty since all went well again.
        horde_away: The Horde gives no jobs.

    Args:
        label: Its name in the configuration; empty for one without.
        metrics: Told of every event.
        clock: Monotonic seconds.
    """

    def __init__(
        self, label: str = "", metrics: WorkerMetrics | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label = label or _LABEL_OF_THE_ONE
        self.clock = clock
        self.state = WorkerState.STARTING
        self.model = ""
        self.threads = 0
        self.running: dict[str, JobActivity] = {}
        self.ended: Counter[JobOutcome] = Counter()
        self.pieces = 0
        self.reply_tokens = 0
        self.kudos = 0.0
        self.trouble = ""
        self.horde_away = False
        self.metrics = metrics or WorkerMetrics()

    @property
    def running_count(self) -> int:
        """Jobs being served."""
        return len(self.running)

    def popped(self, outcome: PopOutcome) -> None:
        """A pop was answered, or not."""
        away = outcome in {"refused", "away"}
        if self.horde_away and not away:
            self.trouble = ""
        self.horde_away = away
        self.metrics.popped(self.label, outcome)

    def job_started(self, job_id: str) -> "JobActivity":
        """A job was popped; its record is to be ended whatever happens."""
        job = self.running[job_id] = JobActivity(self, job_id)
        return job


class JobActivity:
    """One job that is being served.

    Attributes:
        job_id: Its id.
        started_at: When it was popped, by the clock.
        pieces: Pieces of text that came.
    """

    __slots__ = ("_worker", "job_id", "pieces", "started_at")

    def __init__(self, worker: WorkerActivity, job_id: str) -> None:
        self._worker = worker
        self.job_id = job_id
        self.started_at = worker.clock()
        self.pieces = 0

    @property
    def seconds(self) -> float:
        """Time since it was popped."""
        return self._worker.clock() - self.started_at

    def text_came(self) -> None:
        """A piece of text or reasoning came."""
        if self.pieces == 0:
            self._worker.metrics.text_began(self._worker.label, self.seconds)
        self.pieces += 1
        self._worker.pieces += 1

    def progress_posted(self, verdict: ProgressVerdict, seconds: float) -> None:
        """A progress post ended, so long after it began."""
        self._worker.metrics.progress_posted(self._worker.label, verdict, seconds)

    def reply_taken(self, usage: ChatUsage, kudos: float) -> None:
        """The Horde took the reply."""
        worker, tokens = self._worker, usage.completion_tokens or 0
        worker.reply_tokens += tokens
        worker.kudos += kudos
        worker.trouble = ""
        worker.metrics.reply_taken(worker.label, usage.prompt_tokens or 0, tokens, kudos)

    def ended(self, outcome: JobOutcome, fault: ChatFaultReason | None = None) -> None:
        """It is over."""
        worker = self._worker
        worker.running.pop(self.job_id, None)
        worker.ended[outcome] += 1
        worker.metrics.job_ended(worker.label, outcome, fault, self.seconds)
