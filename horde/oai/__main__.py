"""``python -m horde.oai``: settings, telemetry, application, server, exit code."""

import asyncio
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loguru import logger

from horde.oai.routing_errors import encode_refusal
from horde.server import ListenError, ServeOptions, bind_socket, run_event_loop, serve
from horde.telemetry import LogFormat, configure_logging, metrics_endpoint, shut_down_telemetry, start_telemetry

if TYPE_CHECKING:
    from horde.oai.settings import FrontSettings

__all__ = ["FRONT_SERVICE_NAME", "configure_telemetry", "main", "serve_options"]

FRONT_SERVICE_NAME: Final = "horde-oai"
"""Name of the service in logs and traces, unless ``OTEL_SERVICE_NAME`` says another (TEL-4)."""

_EXIT_FAILED: Final = 1
_EXIT_SETTINGS: Final = 2
_EXIT_START: Final = 3

_SEND_BUFFER_BYTES: Final = 192 * 1024
"""Room for a reply's text on its way. A client that stops reading pins this (the kernel doubles it) in place of
megabytes, and is noticed once it is full. It holds several segments of 64 KiB, those of the loopback: a smaller buffer
makes each of them wait for a delayed acknowledgement. A reply of 1 MiB takes 1 to 2 ms there, as without a bound."""


_OTHER_FILES: Final = 64
"""Open files of the front that are no connection of a client or to the Horde; a quiet front has 18."""


def configure_telemetry(*, log_level: str = "INFO", log_format: LogFormat = "auto", scraped: bool = False) -> bool:
    """Configure logging, and telemetry when the environment asks for it, before the application is built (TEL-1).

    Args:
        log_level: Lowest level written.
        log_format: ``auto``, ``text`` or ``json``.
        scraped: Whether metrics are also, or only, kept for a Prometheus that scrapes.

    Returns:
        Whether traces, metrics and logs are exported (TEL-2).
    """
    configure_logging(FRONT_SERVICE_NAME, level=log_level, log_format=log_format)
    from horde.oai.metrics import histogram_views  # noqa: PLC0415 - logging is configured first
    from horde.oai.version import FRONT_VERSION  # noqa: PLC0415

    exports = start_telemetry(
        FRONT_SERVICE_NAME, FRONT_VERSION, views=histogram_views(), log_level=log_level, scraped=scraped
    )
    if exports:
        from horde.oai.instrumentation import instrument_client  # noqa: PLC0415 - costs a good part of a second

        instrument_client()
    return exports


def serve_options(settings: "FrontSettings") -> ServeOptions:
    """Return how the front is served: the times of its stop, and what a client that stops reading may hold.

    Args:
        settings: The front's settings.
    """
    return ServeOptions(
        accept_seconds=settings.drain_accept_seconds,
        drain_seconds=settings.drain_seconds + settings.cancel_timeout_seconds,
        # What a client may leave unread in the front it may not leave unread in the kernel either.
        unread_seconds=settings.write_timeout_seconds,
        send_buffer_bytes=_SEND_BUFFER_BYTES,
        encode_refusal=encode_refusal,
        # Connections to the Horde, an eighth more of them for cancels, Redis, exports and what the program has open.
        own_files=settings.call_slots * 9 // 8 + _OTHER_FILES,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the front until it is told to stop.

    Args:
        argv: No arguments are understood: everything is a setting.

    Returns:
        0 after a clean stop, 1 when it stopped because it could not go on, 2 for wrong settings, 3 when it could not
        start.
    """
    if argv if argv is not None else sys.argv[1:]:
        sys.stderr.write("horde.oai takes no arguments; set HORDE_OAI_* variables (docs/reference/settings.md).\n")
        return _EXIT_SETTINGS
    configure_logging(FRONT_SERVICE_NAME)
    # Imported after logging is configured: the vocabulary's package logs while it is imported.
    from horde.oai.settings import SettingsError, load_settings  # noqa: PLC0415

    try:
        settings = load_settings()
    except SettingsError as error:
        logger.error("{}", error)
        return _EXIT_SETTINGS
    exports = configure_telemetry(
        log_level=settings.log_level, log_format=settings.log_format, scraped=settings.metrics_port is not None
    )
    try:
        return _run(settings, exports=exports)
    finally:
        shut_down_telemetry()


def _run(settings: "FrontSettings", *, exports: bool) -> int:
    from horde.oai.app import create_app  # noqa: PLC0415 - as in main

    metrics_listener: socket.socket | None = None
    try:
        listener = bind_socket(settings.host, settings.port, file_descriptor=settings.listen_fd)
        if settings.metrics_port is not None:
            metrics_listener = bind_socket(settings.metrics_host, settings.metrics_port)
    except ListenError as error:
        logger.error("{}", error)
        return _EXIT_START

    async def run() -> int:
        stopping, failed = asyncio.Event(), asyncio.Event()
        host, port = listener.getsockname()[:2]
        logger.info("The front listens on {}:{}", host, port)
        app = create_app(settings, stopping=stopping, on_failure=failed.set)
        if exports:
            from horde.oai.instrumentation import instrument_app  # noqa: PLC0415

            app = instrument_app(app)
        async with metrics_endpoint(metrics_listener):
            await serve(app, listener, stopping=stopping, options=serve_options(settings))
        return _EXIT_FAILED if failed.is_set() else 0

    try:
        return run_event_loop(run)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else _EXIT_START


if __name__ == "__main__":
    sys.exit(main())
