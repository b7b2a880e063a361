"""The span of a delta read (rules SPN)."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horde.oai.deltas import DeltaRead
from horde.oai.spans import DeltaReadSpans


@pytest.mark.rule("SPN-1", "SPN-2", "SPN-3", "SPN-4", "SPN-5", "SPN-6")
def test_a_read_is_a_root_span_with_its_three_numbers() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("a request"):
        DeltaReadSpans(provider)(DeltaRead(entry_count=3, byte_count=120, first_entry_lag_seconds=0.25))
    span = exporter.get_finished_spans()[0]
    assert span.name == "horde.oai.delta_read"
    assert span.parent is None
    assert dict(span.attributes or {}) == {
        "horde.entry_count": 3,
        "horde.byte_count": 120,
        "horde.first_entry_lag_seconds": 0.25,
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 250_000_000
    provider.shutdown()
