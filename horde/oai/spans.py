"""The front's own spans beside those of its server and client (rules SPN)."""

import time

from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider, get_tracer

from horde.oai.deltas import DeltaRead

__all__ = ["DeltaReadSpans"]

_NANOSECONDS = 1_000_000_000


class DeltaReadSpans:
    """Records one span for each delta read that returned entries (SPN-2).

    Args:
        provider: Where spans go; the global provider's when none is given, which drops them when telemetry is off.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("horde.oai", tracer_provider=provider)

    def __call__(self, read: DeltaRead) -> None:
        """Record a read. Its span is a root: the reader serves every request's stream at once (SPN-6)."""
        ended = time.time_ns()
        span = self._tracer.start_span(
            "horde.oai.delta_read",
            context=Context(),
            start_time=ended - round(max(0.0, read.first_entry_lag_seconds) * _NANOSECONDS),
            attributes={
                "horde.entry_count": read.entry_count,
                "horde.byte_count": read.byte_count,
                "horde.first_entry_lag_seconds": read.first_entry_lag_seconds,
            },
        )
        span.end(ended)
