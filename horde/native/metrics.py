"""Every instrument of the native Horde; nothing else creates one.

As the front's: attribute values come from bounded sets, and never hold a key, a prompt, an address or an id. Counters
and durations are of this process; the gauges of the queue are of the whole Horde, as its latest count has it.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from horde.metrics import BUCKETS_REQUEST_LIFECYCLE_SECONDS, BUCKETS_SECONDS
from horde.native.errors import ReturnCode
from horde.native.lifecycle import JobState, RequestState

__all__ = ["LoadReadings", "NativeMetrics", "PopOutcome", "SubmitOutcome", "histogram_views"]

_MAX_MODELS: Final = 200
"""Models that the gauges tell of, those with the longest queues: names come from workers."""

_CENTS: Final = 100

type SubmitOutcome = Literal["new", "known", "dry_run"]
"""``known`` is a copy of a submit that came before."""
type PopOutcome = Literal["job", "empty"]
"""Whether a pop brought a job."""


class LoadReadings(Protocol):
    """What the gauges read of a model."""

    @property
    def queued(self) -> int:
        """Requests waiting for it."""

    @property
    def running(self) -> int:
        """Jobs running."""

    @property
    def threads(self) -> int:
        """Threads of its online workers."""


def histogram_views() -> list[View]:
    """Return the views that give each histogram its boundaries."""
    boundaries = {
        "horde.native.duration": BUCKETS_SECONDS,
        "horde.native.attempt.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
    }
    return [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
        for name, bounds in boundaries.items()
    ]


class NativeMetrics:
    """The Horde's instruments, one method an event.

    Args:
        meter: Where they are created; the global provider's when none is given, which drops them when nobody reads.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter = meter if meter is not None else get_meter("horde.native")
        counter, histogram = meter.create_counter, meter.create_histogram
        self._duration = histogram("horde.native.duration", "s", "Time of each call, a held pop's wait included.")
        self._refusals = counter("horde.native.refusals", description="Calls refused, by return code.")
        self._submits = counter("horde.native.submits", description="Submits taken in.")
        self._pops = counter("horde.native.pops", description="Pops answered.")
        self._attempts = counter("horde.native.attempts.ended", description="Attempts that ended, by how.")
        self._requests = counter("horde.native.requests.ended", description="Requests that ended, by how.")
        self._attempt_seconds = histogram("horde.native.attempt.duration", "s", "Pop to reply of delivered replies.")
        self._tokens = counter("horde.native.reply.tokens", description="Tokens of delivered replies, as charged.")
        self._held = counter("horde.native.kudos.held", description="Kudos set aside by submits.")
        self._charged = counter("horde.native.kudos.charged", description="Kudos charged, which workers' owners got.")

    def observe(self, loads: Callable[[], Mapping[str, LoadReadings]], held_pops: Callable[[], int]) -> None:
        """Create the gauges.

        Args:
            loads: Returns the latest count of the queue, by model.
            held_pops: Returns how many pops this process holds open.
        """

        def by_model(
            read: Callable[[LoadReadings], int],
        ) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def observed(_options: CallbackOptions) -> Iterable[Observation]:
                longest = sorted(loads().items(), key=lambda entry: -entry[1].queued)[:_MAX_MODELS]
                return [Observation(read(load), {"horde.model": model}) for model, load in longest]

            return observed

        gauge = self._meter.create_observable_gauge
        gauge("horde.native.queue.waiting", [by_model(lambda load: load.queued)], description="Requests waiting.")
        gauge("horde.native.queue.running", [by_model(lambda load: load.running)], description="Jobs running.")
        gauge("horde.native.threads", [by_model(lambda load: load.threads)], description="Threads of online workers.")
        gauge(
            "horde.native.pops.held", [lambda _: (Observation(held_pops()),)], description="Pops held open for a job."
        )

    def call_ended(self, seconds: float, method: str, route: str, status_code: int) -> None:
        """A call was answered; the route is a template."""
        self._duration.record(seconds, {"horde.method": method, "horde.route": route, "horde.status_code": status_code})

    def refused(self, code: ReturnCode) -> None:
        """A call was refused."""
        self._refusals.add(1, {"horde.code": code.value})

    def submitted(self, outcome: SubmitOutcome) -> None:
        """A submit was taken in."""
        self._submits.add(1, {"horde.outcome": outcome})

    def kudos_held(self, cents: int) -> None:
        """A submit set kudos aside, in hundredths."""
        self._held.add(cents / _CENTS)

    def popped(self, outcome: PopOutcome) -> None:
        """A pop was answered."""
        self._pops.add(1, {"horde.outcome": outcome})

    def attempt_ended(self, job_state: JobState) -> None:
        """An attempt ended."""
        self._attempts.add(1, {"horde.outcome": job_state.value})

    def request_ended(self, request_state: RequestState) -> None:
        """A request ended."""
        self._requests.add(1, {"horde.outcome": request_state.value})

    def kudos_charged(self, cents: int) -> None:
        """Kudos were charged, in hundredths."""
        self._charged.add(cents / _CENTS)

    def replied(self, popped_at: datetime, tokens: int, cents: int) -> None:
        """A reply was delivered.

        Args:
            popped_at: When its job was popped, by the database's clock.
            tokens: Its length as charged.
            cents: Hundredths of a kudos charged for it.
        """
        self.attempt_ended(JobState.REPLIED)
        self.request_ended(RequestState.REPLIED)
        self._attempt_seconds.record(max(0.0, (datetime.now(UTC) - popped_at).total_seconds()))
        self._tokens.add(tokens)
        self.kudos_charged(cents)
