"""Traces, metrics and logs by OTLP, for a program whose environment asks for it (rules TEL).

Imported only then: the SDK takes a good part of a second to import, and costs every call something. What leaves the
process is queued in bounded buffers and sent by threads of the SDK, so that a collector that is away, or that accepts
and never answers, delays no request. The exit waits for it a bounded time
(:func:`horde.telemetry.shut_down_telemetry`).
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import logfire
from loguru import logger
from opentelemetry import metrics, trace
from opentelemetry._logs import LogRecord, get_logger, get_logger_provider
from opentelemetry._logs.severity import SeverityNumber
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.metrics.view import View

from horde.telemetry import OTLP_ENDPOINTS

if TYPE_CHECKING:
    from loguru import Message

__all__ = ["add_log_export", "configure_export", "shutdowns"]

_DEFAULT_ENDPOINT: Final = "http://localhost:4318"
"""Where OpenTelemetry looks for a collector when telemetry is on and nobody says where it is."""

_HEADER_CAPTURE: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_"
_NANOSECONDS: Final = 1_000_000_000
_SEVERITIES: Final = (
    (50, SeverityNumber.FATAL),
    (40, SeverityNumber.ERROR),
    (30, SeverityNumber.WARN),
    (20, SeverityNumber.INFO),
    (10, SeverityNumber.DEBUG),
)
_OWN_LOGGERS: Final = ("opentelemetry", "urllib3", "requests", "logfire")
"""What says that an export failed is not exported: each failure would make the next."""

_sinks: Final[list[int]] = []
"""The handlers added to Loguru, which end with the export."""


def configure_export(
    service: str, version: str, views: Sequence[View] = (), readers: Sequence[MetricReader] = ()
) -> None:
    """Set the process's OpenTelemetry providers up, once. Logfire adds an OTLP exporter for each endpoint that is set.

    Args:
        service: Name of the service, unless ``OTEL_SERVICE_NAME`` says another.
        version: Version of the service.
        views: Boundaries of its histograms.
        readers: What reads the metrics beside the exporters.
    """
    for name in [name for name in os.environ if name.startswith(_HEADER_CAPTURE)]:
        # Keys are headers: the instrumentation reads no list of headers to record from anybody (TEL-14).
        del os.environ[name]
    if not any(os.environ.get(name) for name in OTLP_ENDPOINTS):
        os.environ[OTLP_ENDPOINTS[0]] = _DEFAULT_ENDPOINT
    logfire.configure(
        send_to_logfire=False,
        console=False,
        service_name=os.environ.get("OTEL_SERVICE_NAME") or service,
        service_version=version,
        environment=os.environ.get("DEPLOYMENT_ENVIRONMENT") or None,
        metrics=logfire.MetricsOptions(views=views, additional_readers=readers),
        # What is recorded is chosen here, name by name; a guess by pattern would blank model names.
        scrubbing=False,
        inspect_arguments=False,
        add_baggage_to_attributes=False,
        distributed_tracing=True,
    )


def add_log_export(service: str, level: str) -> None:
    """Send Loguru's records to OpenTelemetry too, joined with the trace they were logged in (TEL-6).

    Args:
        service: Name of the logger.
        level: Lowest level sent, a Loguru level name.
    """
    exported = get_logger(service)
    # What the SDK has to say while it takes a record, such as that its queue is full, cannot be logged: Loguru would
    # wait for itself.
    handing_over = threading.local()

    def export(message: "Message") -> None:
        record = message.record
        attributes = {name: _attribute(value) for name, value in record["extra"].items() if value is not None}
        if record["exception"] is not None and record["exception"].type is not None:
            attributes["exception.type"] = record["exception"].type.__qualname__
        handing_over.active = True
        try:
            exported.emit(
                LogRecord(
                    timestamp=round(record["time"].timestamp() * _NANOSECONDS),
                    severity_text=record["level"].name,
                    severity_number=next((known for least, known in _SEVERITIES if record["level"].no >= least), None),
                    body=record["message"],
                    attributes=attributes,
                )
            )
        finally:
            handing_over.active = False

    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda _record: not getattr(handing_over, "active", False))
    sink = logger.add(
        export,
        level=level,
        format="{message}",
        filter=lambda record: not (record["name"] or "").startswith(_OWN_LOGGERS),
        backtrace=False,
        diagnose=False,
    )
    _sinks.append(sink)


def _attribute(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)


def shutdowns() -> list[Callable[[], object]]:
    """End the export of log records, and return what flushes and stops each provider; each may wait for a collector."""
    while _sinks:
        logger.remove(_sinks.pop())
    # The SDK stops itself once more at the exit, and would warn of it.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider(), get_logger_provider())
    return [shutdown for provider in providers if callable(shutdown := getattr(provider, "shutdown", None))]
