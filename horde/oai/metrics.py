"""Every instrument of the front; nothing else creates one (rules MET).

Attribute values come from bounded sets alone; the model id only from a delivered completion. Addresses, keys, prompts,
titles and request ids are never attributes (MET-2 to MET-4).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from horde.metrics import BUCKETS_REQUEST_LIFECYCLE_SECONDS, BUCKETS_SECONDS
from horde.oai.cancel import CancelOutcome
from horde.oai.errors import FrontCode
from horde.oai.horde_client import CallOutcome, CallType
from horde.oai.relay import RelayOutcome

__all__ = ["BUCKETS_BODY_BYTES", "FrontMetrics", "LimiterReadings", "histogram_views"]

BUCKETS_BODY_BYTES: Final = tuple(256 * 4**power for power in range(10))
"""Powers of four from 256 bytes to 64 MiB (decision U34)."""

_BUCKETS_BY_NAME: Final[Mapping[str, tuple[float, ...]]] = {
    "horde.oai.native.duration": BUCKETS_SECONDS,
    "horde.oai.queue_wait": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
    "horde.oai.first_content.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
    "horde.oai.request.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
    "horde.oai.request.body_bytes": BUCKETS_BODY_BYTES,
}


class LimiterReadings(Protocol):
    """What the gauges read from the limiter (ADM-7)."""

    @property
    def in_use(self) -> int:
        """Slots held."""

    @property
    def source_count(self) -> int:
        """Addresses holding at least one."""

    @property
    def source_max(self) -> int:
        """The most slots of one address."""


def histogram_views() -> list[View]:
    """Return the views that give each histogram its boundaries (TEL-5, MET-35)."""
    return [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(boundaries))
        for name, boundaries in _BUCKETS_BY_NAME.items()
    ]


class FrontMetrics:
    """The front's instruments, one method an event.

    Args:
        meter: Where they are created; the global provider's when none is given (MAP-39).
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter = meter if meter is not None else get_meter("horde.oai")
        counter, histogram = meter.create_counter, meter.create_histogram
        self._admitted = counter("horde.oai.requests.admitted", description="Chat requests that took a slot.")
        self._refused = counter("horde.oai.requests.refused", description="Chat requests refused before a slot.")
        self._errors = counter("horde.oai.requests.errors", description="Admitted requests ended by an error status.")
        self._stream_failures = counter("horde.oai.stream.failures", description="Streams ended by an error event.")
        self._body_bytes = histogram("horde.oai.request.body_bytes", "By", "Size of each body received whole.")
        self._native = histogram("horde.oai.native.duration", "s", "Latency of each call to the Horde.")
        self._queue_wait = histogram("horde.oai.queue_wait", "s", "Creation to assignment of delivered generations.")
        self._first_content = histogram("horde.oai.first_content.duration", "s", "Submit to the first content sent.")
        self._duration = histogram("horde.oai.request.duration", "s", "Arrival to end of admitted requests.")
        self._wakes = counter("horde.oai.wakes", description="Status reads of waiting requests, by cause.")
        self._unknown = counter("horde.oai.submit.outcome_unknown", description="Submits whose outcome is unknown.")
        self._recoveries = counter("horde.oai.submit.recoveries", description="Lost submits recovered by a re-send.")
        self._retry_hints = counter("horde.oai.client_retry_hints", description="Requests that a client's SDK retried.")
        self._completions = counter("horde.oai.completions", description="Delivered completions.")
        self._empty = counter("horde.oai.completions.empty", description="Completions without visible text.")
        self._relayed = counter("horde.oai.stream.relayed", description="Streams that sent a relayed delta.")
        self._relay_outcomes = counter("horde.oai.stream.relay_outcomes", description="How relayed streams ended.")
        self._cancels = counter("horde.oai.cancels", description="Cancels sent to the Horde, each attempt.")

        self._show_zeros()

    def _show_zeros(self) -> None:
        """Begin rare counters at 0: a rate does not see an increase from nothing to 1."""
        for rare in (self._unknown, self._retry_hints, self._relayed):
            rare.add(0)
        self._stream_failures.add(0, {"horde.code": FrontCode.INTERNAL.value})
        for streamed in (True, False):
            self._errors.add(
                0,
                {
                    "horde.status_code": 500,
                    "horde.code": FrontCode.INTERNAL.value,
                    "horde.streamed": streamed,
                    "horde.reason": "",
                },
            )
        for claimed in (True, False):
            self._recoveries.add(0, {"horde.existing_claim": claimed})
        for outcome in CancelOutcome:
            self._cancels.add(0, {"horde.outcome": outcome.value})
        for relayed in RelayOutcome:
            self._relay_outcomes.add(0, {"horde.outcome": relayed.value})

    def observe(self, limiter: LimiterReadings) -> None:
        """Create the gauges that read the limiter."""

        def reading(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: (Observation(read()),)

        gauge = self._meter.create_observable_gauge
        gauge("horde.oai.inflight", [reading(lambda: limiter.in_use)], description="Requests holding a slot.")
        gauge(
            "horde.oai.inflight.sources", [reading(lambda: limiter.source_count)], description="Addresses with a slot."
        )
        gauge(
            "horde.oai.inflight.source_max", [reading(lambda: limiter.source_max)], description="Most of one address."
        )

    def request_admitted(self, *, streamed: bool) -> None:
        """A chat request took a slot (MET-5)."""
        self._admitted.add(1, {"horde.streamed": streamed})

    def request_refused(self, status_code: int, code: str) -> None:
        """A chat request was turned away before a slot (MET-6)."""
        self._refused.add(1, {"horde.status_code": status_code, "horde.code": code})

    def request_failed(self, status_code: int, code: str, *, streamed: bool, reason: str) -> None:
        """An admitted request ended in an error status before any header (MET-7, MET-8)."""
        self._errors.add(
            1,
            {
                "horde.status_code": status_code,
                "horde.code": code,
                "horde.streamed": streamed,
                "horde.reason": reason,
            },
        )

    def stream_failed(self, code: str) -> None:
        """An open stream ended in an error event (MET-9)."""
        self._stream_failures.add(1, {"horde.code": code})

    def body_received(self, size: int) -> None:
        """A body was received whole; size in bytes (MET-13)."""
        self._body_bytes.record(size)

    def native_call(self, call_type: CallType, outcome: CallOutcome, seconds: float) -> None:
        """A native call ended (MET-14)."""
        self._native.record(seconds, {"horde.call_type": call_type.value, "horde.outcome": outcome.value})

    def first_content(self, seconds: float, *, streamed: bool, relayed: bool) -> None:
        """The first content went out, so long after the submit's answer (MET-18)."""
        self._first_content.record(seconds, {"horde.streamed": streamed, "horde.relayed": relayed})

    def request_ended(self, seconds: float, status_code: int, code: str, *, streamed: bool) -> None:
        """An admitted request ended, so long after its arrival (MET-19, MET-20)."""
        self._duration.record(
            seconds, {"horde.streamed": streamed, "horde.status_code": status_code, "horde.code": code}
        )

    def wake(self, source: str, *, finished: bool, done_without_generation: bool) -> None:
        """A waiting request's status was read, or its client left (MET-21 to MET-23)."""
        self._wakes.add(
            1,
            {
                "horde.wake_source": source,
                "horde.found_finished": finished,
                "horde.found_done_without_generation": done_without_generation,
            },
        )

    def submit_outcome_unknown(self) -> None:
        """A request was answered with an unknown submit outcome (MET-24)."""
        self._unknown.add(1)

    def submit_recovered(self, *, existing_claim: bool) -> None:
        """A lost submit was recovered (MET-25)."""
        self._recoveries.add(1, {"horde.existing_claim": existing_claim})

    def client_retried(self) -> None:
        """A chat request carries a retry count above zero (MET-26)."""
        self._retry_hints.add(1)

    def completion_delivered(
        self, model: str, *, estimated_usage: bool, empty: bool, queue_wait_seconds: float | None
    ) -> None:
        """A completion was delivered whole (MET-17, MET-27, MET-28)."""
        self._completions.add(1, {"horde.model": model, "horde.estimated_usage": estimated_usage})
        if empty:
            self._empty.add(1, {"horde.model": model})
        if queue_wait_seconds is not None:
            self._queue_wait.record(queue_wait_seconds, {"horde.model": model})

    def stream_relayed(self) -> None:
        """A stream sent its first relayed delta (MET-29)."""
        self._relayed.add(1)

    def relay_ended(self, outcome: str) -> None:
        """A relayed stream ended (MET-30)."""
        self._relay_outcomes.add(1, {"horde.outcome": outcome})

    def cancel_ended(self, outcome: CancelOutcome) -> None:
        """An attempt to cancel ended (MET-32)."""
        self._cancels.add(1, {"horde.outcome": outcome.value})
