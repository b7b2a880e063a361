"""Every instrument of the worker; nothing else creates one.

As the front's and the Horde's: attribute values come from bounded sets, and never hold a key, a prompt or an id. What
is counted is this process's.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from horde_sdk.worker.chat_declaration import ChatFaultReason
from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from horde.metrics import BUCKETS_REQUEST_LIFECYCLE_SECONDS, BUCKETS_SECONDS
from horde.worker.horde_client import ProgressVerdict

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.view import View

__all__ = ["JobOutcome", "PopOutcome", "WorkerMetrics", "WorkerReadings", "WorkerState", "histogram_views"]

type PopOutcome = Literal["job", "empty", "refused", "away"]
"""What a pop brought; ``away`` is no answer of a Horde."""


class JobOutcome(StrEnum):
    """What became of a job."""

    TAKEN = "taken"
    """The Horde has the reply."""
    ENDED = "ended"
    """The reply came too late: the attempt had ended."""
    CANCELLED = "cancelled"
    FAULTED = "faulted"
    DROPPED = "dropped"
    """The worker was stopped by force."""


class WorkerState(StrEnum):
    """What a worker does."""

    STARTING = "starting"
    """It looks for its model server."""
    SERVING = "serving"
    RESTING = "resting"
    """Out of its hours."""
    AWAY = "away"
    """Its model server is."""
    STOPPING = "stopping"
    FAILED = "failed"
    """It could not start; it may be tried again."""
    STOPPED = "stopped"


class WorkerReadings(Protocol):
    """What the gauges read of a worker."""

    @property
    def label(self) -> str:
        """Its name in the configuration."""

    @property
    def state(self) -> WorkerState:
        """What it does."""

    @property
    def threads(self) -> int:
        """Jobs that it can serve at a time; 0 until that is known."""

    @property
    def running_count(self) -> int:
        """Jobs that it serves."""


def histogram_views() -> "list[View]":
    """Return the views that give each histogram its boundaries."""
    # Only who reads the metrics needs the SDK.
    from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View  # noqa: PLC0415

    boundaries = {
        "horde.worker.job.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
        "horde.worker.first_text.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
        "horde.worker.progress.duration": BUCKETS_SECONDS,
    }
    return [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
        for name, bounds in boundaries.items()
    ]


class WorkerMetrics:
    """The worker's instruments, one method an event.

    Args:
        meter: Where they are created; the global provider's when none is given, which drops them when nobody reads.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter = meter if meter is not None else get_meter("horde.worker")
        counter, histogram = meter.create_counter, meter.create_histogram
        self._pops = counter("horde.worker.pops", description="Pops answered, or not.")
        self._jobs = counter("horde.worker.jobs.ended", description="Jobs that ended, by how.")
        self._job_seconds = histogram("horde.worker.job.duration", "s", "Pop to the end of each job.")
        self._first_text = histogram("horde.worker.first_text.duration", "s", "Pop to the first text of each reply.")
        self._prompt_tokens = counter("horde.worker.prompt.tokens", description="Prompt tokens of replies taken.")
        self._reply_tokens = counter("horde.worker.reply.tokens", description="Tokens of replies taken.")
        self._kudos = counter("horde.worker.kudos", description="Kudos earned.")
        self._posts = histogram("horde.worker.progress.duration", "s", "Time of each progress post and heartbeat.")

    def observe(self, workers: Callable[[], Iterable[WorkerReadings]]) -> None:
        """Create the gauges.

        Args:
            workers: Returns the workers of this process.
        """

        def each(read: Callable[[WorkerReadings], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _: [Observation(read(worker), {"horde.worker": worker.label}) for worker in workers()]

        def states(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(int(worker.state is state), {"horde.worker": worker.label, "horde.state": state.value})
                for worker in workers()
                for state in WorkerState
            ]

        gauge = self._meter.create_observable_gauge
        gauge("horde.worker.state", [states], description="1 for the state that a worker is in, 0 for the others.")
        gauge("horde.worker.threads", [each(lambda one: one.threads)], description="Jobs that can be served at a time.")
        gauge("horde.worker.jobs.running", [each(lambda one: one.running_count)], description="Jobs being served.")

    def popped(self, worker: str, outcome: PopOutcome) -> None:
        """A pop was answered, or not."""
        self._pops.add(1, {"horde.worker": worker, "horde.outcome": outcome})

    def text_began(self, worker: str, seconds: float) -> None:
        """A reply's first text came, so long after its pop."""
        self._first_text.record(seconds, {"horde.worker": worker})

    def progress_posted(self, worker: str, verdict: ProgressVerdict, seconds: float) -> None:
        """A progress post ended."""
        self._posts.record(seconds, {"horde.worker": worker, "horde.outcome": verdict.name.lower()})

    def reply_taken(self, worker: str, prompt_tokens: int, reply_tokens: int, kudos: float) -> None:
        """The Horde took a reply."""
        attributes = {"horde.worker": worker}
        self._prompt_tokens.add(prompt_tokens, attributes)
        self._reply_tokens.add(reply_tokens, attributes)
        self._kudos.add(kudos, attributes)

    def job_ended(self, worker: str, outcome: JobOutcome, fault: ChatFaultReason | None, seconds: float) -> None:
        """A job ended, so long after its pop."""
        reason = fault.value if fault is not None else ""
        attributes = {"horde.worker": worker, "horde.outcome": outcome.value, "horde.reason": reason}
        self._jobs.add(1, attributes)
        self._job_seconds.record(seconds, {"horde.worker": worker, "horde.outcome": outcome.value})
