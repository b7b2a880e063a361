"""The native Horde as a program: ``python -m horde.native``.

Exit codes: 0 after a clean stop by a signal, 1 when a part of it failed while it ran, 2 for wrong settings, 3 when the
start failed.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from loguru import logger

from horde.native.errors import encode_refusal
from horde.native.settings import NativeSettings, SettingsError, load_settings
from horde.server import ListenError, ServeOptions, bind_socket, run_event_loop, serve
from horde.telemetry import configure_logging, metrics_endpoint, shut_down_telemetry, start_telemetry

__all__ = ["NATIVE_SERVICE_NAME", "main"]

NATIVE_SERVICE_NAME: Final = "horde-native"

_FAILED: Final = 1
_WRONG_SETTINGS: Final = 2
_START_FAILED: Final = 3


def main(_arguments: Sequence[str] | None = None) -> int:
    """Run the Horde until it is told to stop; return the exit code. Settings come from the environment alone."""
    configure_logging(NATIVE_SERVICE_NAME)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = load_settings()
    except SettingsError as error:
        logger.error("{}", error)
        return _WRONG_SETTINGS
    configure_logging(NATIVE_SERVICE_NAME, level=settings.log_level, log_format=settings.log_format)
    with contextlib.ExitStack() as stack:
        metrics_listener: socket.socket | None = None
        try:
            listener = bind_socket(settings.host, settings.port, file_descriptor=settings.listen_fd)
            stack.enter_context(listener)
            if settings.metrics_port is not None:
                metrics_listener = stack.enter_context(bind_socket(settings.metrics_host, settings.metrics_port))
        except (ListenError, OSError) as error:
            logger.error("{}", error)
            return _START_FAILED
        try:
            return run_event_loop(partial(_run, settings, listener, metrics_listener))
        finally:
            shut_down_telemetry()


def _start_telemetry(settings: NativeSettings) -> bool:
    from horde.native.metrics import histogram_views  # noqa: PLC0415 - as below

    version = importlib.metadata.version("horde-oai")
    scraped = settings.metrics_port is not None
    return start_telemetry(
        NATIVE_SERVICE_NAME, version, views=histogram_views(), log_level=settings.log_level, scraped=scraped
    )


async def _run(settings: NativeSettings, listener: socket.socket, metrics_listener: socket.socket | None) -> int:
    # What is imported here takes seconds, and a mistake in the settings should be told before.
    from horde.native.db.engine import DatabaseError, prepare_database  # noqa: PLC0415

    try:
        await asyncio.to_thread(prepare_database, settings.database_url.get_secret_value(), settings.migrate)
    except DatabaseError as error:
        logger.error("{}", error)
        return _START_FAILED
    exports = _start_telemetry(settings)
    from horde.native.app import create_app  # noqa: PLC0415
    from horde.native.instrumentation import instrument_app  # noqa: PLC0415

    stopping, failed = asyncio.Event(), asyncio.Event()
    options = ServeOptions(
        accept_seconds=settings.drain_accept_seconds,
        drain_seconds=settings.drain_seconds,
        encode_refusal=encode_refusal,
    )
    host, port = listener.getsockname()[:2]
    logger.info("Serving the Horde on http://{}:{}/api", host, port)
    try:
        app = create_app(settings, stopping=stopping, on_failure=failed.set)
        measured = instrument_app(app, measured=exports or metrics_listener is not None, traced=exports)
        async with metrics_endpoint(metrics_listener):
            await serve(measured, listener, stopping=stopping, options=options)
    except SystemExit:
        logger.error("The Horde could not start; the lines above say why")
        return _START_FAILED
    return _FAILED if failed.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
