"""Logging and telemetry shared by the programs; nothing here belongs to one of them.

Every program logs through Loguru: one JSON object a line where nobody watches, coloured text on a terminal. Values of
variables never reach a log (``diagnose=False``): they could hold a key or a prompt.
"""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, TextIO

import orjson
from loguru import logger

if TYPE_CHECKING:
    from loguru import Message, Record
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.metrics.view import View

__all__ = [
    "OTLP_ENDPOINTS",
    "SHUTDOWN_SECONDS",
    "LogFormat",
    "configure_logging",
    "init_pyroscope",
    "metrics_endpoint",
    "sdk_disabled",
    "shut_down_telemetry",
    "start_telemetry",
    "telemetry_enabled",
]

LogFormat = Literal["auto", "text", "json"]
"""``auto`` is text on a terminal and JSON elsewhere."""

SHUTDOWN_SECONDS: Final = 3.0
"""How long the exit of a program waits for its last telemetry to be taken."""

_TEXT_HEAD = "<green>{time:HH:mm:ss.SSS}</green> <level>{level: <7}</level> <cyan>{extra[service]}</cyan>"

OTLP_ENDPOINTS: Final = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "TRACES_", "METRICS_", "LOGS_"))
"""The variables that name a collector, for everything and for one kind each."""


_QUIET_LOGGERS = ("uvicorn.access", "uvicorn.error", "asyncio", "aiohttp.access")
"""Libraries whose routine messages say nothing to an operator; their warnings still pass."""


class _LoguruHandler(logging.Handler):
    """Hands records of the standard library's logging to Loguru, at the place that logged them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward one record."""
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - how logging itself finds its caller
        depth = 0
        while frame is not None and (depth == 0 or frame.f_code.co_filename == logging.__file__):
            frame = frame.f_back
            depth += 1
        logger.opt(depth=depth, exception=record.exc_info).log(level, record.getMessage())


def _format_text(record: "Record") -> str:
    """Return the form of a line; a process with several workers says which one it is about."""
    worker = " <magenta>{extra[worker]}</magenta>" if "worker" in record["extra"] else ""
    return f"{_TEXT_HEAD}{worker} {{message}}\n{{exception}}"


def _write_json(stream: TextIO, message: "Message") -> None:
    record = message.record
    fields = {
        "time": record["time"].isoformat(),
        "level": record["level"].name,
        "message": record["message"],
        **record["extra"],
    }
    if record["exception"] is not None:
        fields["exception"] = str(message).partition("\n")[2].rstrip()
    stream.write(orjson.dumps(fields, default=str).decode() + "\n")


def configure_logging(
    service: str, *, level: str = "INFO", log_format: LogFormat = "auto", stream: TextIO | None = None
) -> None:
    """Send every log record of this process to standard error, or another stream, in one form.

    Args:
        service: Name of the program, in each record.
        level: Lowest level written, a Loguru level name.
        log_format: ``text``, ``json``, or ``auto`` for text on a terminal and JSON elsewhere. ``NO_COLOR`` makes text
            plain.
        stream: Where to; standard error when left out.
    """
    # Pydantic loads Logfire's plug-in wherever Logfire is installed: 200 modules and 7 MB, for nothing used here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "logfire-plugin")
    stream = sys.stderr if stream is None else stream
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    logger.remove()
    logger.configure(extra={"service": service})
    if as_text:
        colours = False if os.environ.get("NO_COLOR") else None
        logger.add(stream, level=level, format=_format_text, colorize=colours, backtrace=False, diagnose=False)
    else:
        logger.add(partial(_write_json, stream), level=level, format="{message}", backtrace=False, diagnose=False)
    logging.basicConfig(handlers=[_LoguruHandler()], level=logging.INFO, force=True)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


def telemetry_enabled() -> bool:
    """Whether this process exports telemetry: an OTLP endpoint or ``AI_HORDE_TELEMETRY_ENABLED`` is set (U33)."""
    return any(os.environ.get(name) for name in OTLP_ENDPOINTS) or _is_set("AI_HORDE_TELEMETRY_ENABLED")


def sdk_disabled() -> bool:
    """Whether ``OTEL_SDK_DISABLED`` turns traces, metrics and exported logs off, whatever else is set (TEL-2)."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def init_pyroscope(service: str) -> bool:
    """Start continuous profiling when ``PYROSCOPE_ENABLED`` asks for it (TEL-9), also under ``OTEL_SDK_DISABLED``.

    Args:
        service: The application's name, unless ``OTEL_SERVICE_NAME`` says another.

    Returns:
        Whether it was started. A missing package is logged: profiling is no reason not to serve.
    """
    if not _is_set("PYROSCOPE_ENABLED"):
        return False
    try:
        import pyroscope  # noqa: PLC0415 - an optional package
    except ImportError:
        logger.warning("PYROSCOPE_ENABLED is set, but the package is missing: install horde-oai[profiling]")
        return False
    pyroscope.configure(
        application_name=os.environ.get("OTEL_SERVICE_NAME") or service,
        server_address=os.environ.get("PYROSCOPE_SERVER_ADDRESS") or "http://localhost:4040",
        tenant_id=os.environ.get("PYROSCOPE_TENANT_ID", ""),
    )
    return True


def start_telemetry(
    service: str, version: str, *, views: "Sequence[View]", log_level: str, scraped: bool = False
) -> bool:
    """Set up what the environment asks for: exports, profiles, metrics to scrape (TEL-2, TEL-9).

    What each takes is imported only then.

    Args:
        service: Name of the service, unless ``OTEL_SERVICE_NAME`` says another.
        version: Version of the service.
        views: Boundaries of its histograms.
        log_level: Lowest level of the log records that are exported.
        scraped: Whether metrics are kept for :func:`metrics_endpoint`.

    Returns:
        Whether traces, metrics and logs are exported.
    """
    exports = telemetry_enabled() and not sdk_disabled()
    readers: list[MetricReader] = []
    if scraped:
        from horde.metrics_endpoint import new_reader  # noqa: PLC0415

        readers.append(new_reader())
    if exports:
        from horde.telemetry_export import add_log_export, configure_export  # noqa: PLC0415

        configure_export(service, version, views, readers)
        add_log_export(service, log_level)
    elif scraped:
        from horde.metrics_endpoint import record_metrics_alone  # noqa: PLC0415

        record_metrics_alone(service, version, views, readers)
    init_pyroscope(service)
    return exports


def metrics_endpoint(listener: socket.socket | None) -> AbstractAsyncContextManager[None]:
    """Answer a Prometheus that scrapes for as long as the context is open.

    Args:
        listener: A bound socket; without one nothing is served.
    """
    if listener is None:
        return contextlib.nullcontext()
    from horde.metrics_endpoint import serving_metrics  # noqa: PLC0415

    return serving_metrics(listener)


def shut_down_telemetry(seconds: float = SHUTDOWN_SECONDS) -> None:
    """Send what is queued, profiles too, and stop; nothing happens when nothing was started.

    Args:
        seconds: Time for all of it together: a collector that never answers must not hold the exit. Threads that
            still wait for one die with the process.
    """
    shutdowns: list[Callable[[], object]] = []
    if (export := sys.modules.get("horde.telemetry_export")) is not None:
        shutdowns += export.shutdowns()
    if (pyroscope := sys.modules.get("pyroscope")) is not None:
        shutdowns.append(pyroscope.shutdown)
    threads = [threading.Thread(target=shutdown, name="telemetry - last export", daemon=True) for shutdown in shutdowns]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        logger.warning("The collector did not take the last telemetry in time")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"}
