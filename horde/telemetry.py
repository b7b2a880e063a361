"""Logging and telemetry shared by the programs; nothing here belongs to one of them.

Every program logs through Loguru: one JSON object a line where nobody watches, coloured text on a terminal. Values of
variables never reach a log (``diagnose=False``): they could hold a key or a prompt.
"""

import logging
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Literal

import orjson
from loguru import logger

if TYPE_CHECKING:
    from loguru import Message

__all__ = ["LogFormat", "configure_logging", "telemetry_enabled"]

LogFormat = Literal["auto", "text", "json"]
"""``auto`` is text on a terminal and JSON elsewhere."""

_TEXT_FORMAT = "<green>{time:HH:mm:ss.SSS}</green> <level>{level: <7}</level> <cyan>{extra[service]}</cyan> {message}"

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
        frame: FrameType | None = logging.currentframe()
        depth = 2
        while frame is not None and frame.f_code.co_filename == logging.__file__:
            frame = frame.f_back
            depth += 1
        logger.opt(depth=depth, exception=record.exc_info).log(level, record.getMessage())


def _write_json(message: "Message") -> None:
    record = message.record
    fields = {
        "time": record["time"].isoformat(),
        "level": record["level"].name,
        "message": record["message"],
        **record["extra"],
    }
    if record["exception"] is not None:
        fields["exception"] = str(message).partition("\n")[2].rstrip()
    sys.stderr.write(orjson.dumps(fields, default=str).decode() + "\n")


def configure_logging(service: str, *, level: str = "INFO", log_format: LogFormat = "auto") -> None:
    """Send every log record of this process to standard error in one form.

    Args:
        service: Name of the program, in each record.
        level: Lowest level written, a Loguru level name.
        log_format: ``text``, ``json``, or ``auto`` for text on a terminal and JSON elsewhere.
    """
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    logger.remove()
    logger.configure(extra={"service": service})
    if as_text:
        logger.add(sys.stderr, level=level, format=_TEXT_FORMAT, backtrace=False, diagnose=False)
    else:
        logger.add(_write_json, level=level, format="{message}", backtrace=False, diagnose=False)
    logging.basicConfig(handlers=[_LoguruHandler()], level=logging.INFO, force=True)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


def telemetry_enabled() -> bool:
    """Whether this process exports telemetry: an OTLP endpoint or ``AI_HORDE_TELEMETRY_ENABLED`` is set (U33)."""
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return True
    return os.environ.get("AI_HORDE_TELEMETRY_ENABLED", "").strip().lower() in {"1", "true", "yes", "on"}
