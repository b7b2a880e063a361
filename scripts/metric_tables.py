"""Tables of a program's instruments, from what readers see after each was used once."""

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum
from opentelemetry.sdk.metrics.export import Metric as Instrument
from opentelemetry.sdk.metrics.view import View
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

__all__ = ["Measured", "measure", "metric_tables", "use_each"]

_KINDS: Final = {Sum: "counter", Gauge: "gauge", Histogram: "histogram"}
_UNITS: Final = {"s": "seconds", "By": "bytes"}
_SAMPLES: Final[dict[Any, Any]] = {bool: True, int: 1, float: 1.0, str: "sample", datetime: datetime.now(UTC)}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a reader of OpenTelemetry and a scraper see.

    Attributes:
        instruments: By name.
        families: Prometheus's series.
    """

    instruments: list[Instrument]
    families: list[Metric]


def measure(use: Callable[[Meter], None], views: Sequence[View]) -> Measured:
    """Return what readers see of a meter.

    Args:
        use: Creates instruments from the meter and uses each.
        views: Boundaries of the histograms.
    """
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    scraped = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    provider = MeterProvider([reader, scraped], views=views)
    use(provider.get_meter("reference"))
    found, families = reader.get_metrics_data(), list(registry.collect())
    provider.shutdown()
    scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics] if found else []
    return Measured(sorted((one for scope in scopes for one in scope.metrics), key=lambda one: one.name), families)


def use_each(recorder: object) -> None:
    """Call every public method of a recorder but ``observe`` once, with values of the annotated types."""
    for name, method in inspect.getmembers(recorder, inspect.ismethod):
        if name.startswith("_") or name == "observe":
            continue
        annotations = {key: kind for key, kind in inspect.get_annotations(method).items() if key != "return"}
        method(**{key: _sample(kind) for key, kind in annotations.items()})


def _sample(kind: Any) -> Any:  # noqa: ANN401 - a value of any type
    kind = getattr(kind, "__value__", kind)
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)[0]
    kind = next(iter(typing.get_args(kind)), kind)
    return _SAMPLES[kind] if kind in _SAMPLES else next(iter(kind))


def metric_tables(measured: Measured, values: Sequence[tuple[str, str]], note: str = "") -> str:
    """Return the tables of instruments, values and buckets.

    Args:
        measured: What readers see.
        values: Attributes and what they can be.
        note: A sentence after the values.
    """
    series = {family.documentation: _series_of(family) for family in measured.families}
    head = "Name", "Kind", "Unit", "Attributes", "Prometheus", "Meaning"
    lines, buckets = ["", f"| {' | '.join(head)} |", "|---|---|---|---|---|---|"], []
    for one in measured.instruments:
        named = dict.fromkeys(name for point in one.data.data_points for name in point.attributes or ())
        attributes = ", ".join(f"`{name}`" for name in named)
        unit, meaning = _UNITS.get(one.unit or "", ""), one.description or ""
        row = [f"`{one.name}`", _KINDS[type(one.data)], unit, attributes, f"`{series[meaning]}`", meaning]
        lines.append(f"| {' | '.join(row)} |")
        if isinstance(one.data, Histogram):
            bounds = ", ".join(f"{bound:.10g}" for bound in one.data.data_points[0].explicit_bounds)
            buckets.append(f"| `{one.name}` | {bounds} |")
    lines += ["", "## Values", "", "| Attribute | Values |", "|---|---|"]
    lines += [f"| {name} | {listed} |" for name, listed in values]
    lines += ["", *([note, ""] if note else []), "## Buckets", "", "| Histogram | Boundaries |", "|---|---|", *buckets]
    return "\n".join(lines) + "\n"


def _series_of(family: Metric) -> str:
    """Return the name under which Prometheus sees an instrument."""
    return family.name + {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
