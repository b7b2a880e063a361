"""The native Horde's instruments: names and attributes that are bounded, gauges of the queue."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from horde.metrics import BUCKETS_SECONDS
from horde.native.metrics import NativeMetrics, histogram_views
from horde.native.snapshot import ModelLoad
from scripts.metric_tables import use_each


def points(metrics_of: dict[str, ModelLoad]) -> dict[str, list[Any]]:
    """Return the data points of each instrument after each was used once, over a queue."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=histogram_views())
    metrics = NativeMetrics(provider.get_meter("test"))
    metrics.observe(lambda: metrics_of, lambda: 7)
    use_each(metrics)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_names_and_attributes_begin_with_horde() -> None:
    for name, found in points({"a-model": ModelLoad()}).items():
        assert name.startswith("horde.native.")
        assert all(key.startswith("horde.") for point in found for key in point.attributes)


def test_the_gauges_are_the_latest_count_of_the_queue() -> None:
    found = points({"a-model": ModelLoad(queued=3, running=2, threads=5)})
    for name, value in {"queue.waiting": 3, "queue.running": 2, "threads": 5}.items():
        [point] = found[f"horde.native.{name}"]
        assert (point.attributes, point.value) == ({"horde.model": "a-model"}, value)
    assert [point.value for point in found["horde.native.pops.held"]] == [7]


def test_gauges_tell_of_the_longest_queues_alone_however_many_names_workers_make_up() -> None:
    found = points({f"model-{number}": ModelLoad(queued=number) for number in range(300)})
    assert sorted(point.value for point in found["horde.native.queue.waiting"]) == list(range(100, 300))


def test_the_time_of_calls_has_the_shared_boundaries() -> None:
    [point] = points({})["horde.native.duration"]
    assert tuple(point.explicit_bounds) == BUCKETS_SECONDS
