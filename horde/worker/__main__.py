"""``python -m horde.worker``: share model servers with a Horde.

Exit codes: 0 after a stop by a signal, 1 when a second signal cut it short, 2 for wrong settings, 3 when no worker
could serve.
"""

import asyncio
import contextlib
import importlib.metadata
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

from loguru import logger

from horde.server import ListenError, bind_socket, run_event_loop
from horde.telemetry import (
    configure_logging,
    metrics_endpoint,
    shut_down_telemetry,
    start_telemetry,
    telemetry_enabled,
)
from horde.worker.configuration import Configuration, load_configuration
from horde.worker.options import Arguments, parse_arguments
from horde.worker.settings import ProgramSettings, SettingsError
from horde.worker.terminal import LogLines, is_view_wanted

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.view import View

    from horde.worker.fleet import WorkerFleet

__all__ = ["main"]

_SERVICE_NAME: Final = "horde-worker"

_EXIT_OK: Final = 0
_EXIT_FORCED: Final = 1
_EXIT_WRONG_SETTINGS: Final = 2
_EXIT_START_FAILED: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workers until SIGTERM, SIGINT or SIGHUP, or check their configuration; return the exit code."""
    arguments = parse_arguments(argv)
    configure_logging(_SERVICE_NAME, level="WARNING")
    try:
        configuration = load_configuration(arguments.settings, config=arguments.config)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_WRONG_SETTINGS
    if arguments.check:
        return _check(configuration, arguments)
    return _serve(configuration)


def _check(configuration: Configuration, arguments: Arguments) -> int:
    # The SDK logs while it is imported: after the log is configured.
    from horde.worker.check import describe, probe_all  # noqa: PLC0415 - see above
    from horde.worker.schedule import WallClock  # noqa: PLC0415

    sys.stderr.writelines(f"Warning: {warning}\n" for warning in configuration.warnings)
    sys.stdout.write("\n".join(describe(configuration, WallClock())) + "\n")
    if not arguments.probe:
        return _EXIT_OK
    lines, usable = asyncio.run(probe_all(configuration.workers))
    sys.stdout.write("\n".join(lines) + "\n")
    return _EXIT_OK if usable else _EXIT_START_FAILED


def _serve(configuration: Configuration) -> int:
    program = configuration.program
    viewed = is_view_wanted(plain=program.plain)
    # A log that goes elsewhere is no business of the view's.
    lines = LogLines() if viewed and sys.stderr.isatty() else None
    configure_logging(_SERVICE_NAME, level=program.log_level, log_format=program.log_format, stream=lines)
    for warning in configuration.warnings:
        logger.warning("{}", warning)
    with contextlib.ExitStack() as stack:
        listener: socket.socket | None = None
        try:
            if program.metrics_port is not None:
                listener = stack.enter_context(bind_socket(program.metrics_host, program.metrics_port))
        except ListenError as error:
            logger.error("{}", error)
            return _EXIT_START_FAILED
        _start_telemetry(program)
        try:
            return run_event_loop(partial(_run, configuration, listener, lines, viewed=viewed))
        finally:
            shut_down_telemetry()


def _start_telemetry(program: ProgramSettings) -> None:
    scraped = program.metrics_port is not None
    views: Sequence[View] = ()
    if scraped or telemetry_enabled():
        from horde.worker.metrics import histogram_views  # noqa: PLC0415 - as above

        views = histogram_views()
    version = importlib.metadata.version("horde-oai")
    if start_telemetry(_SERVICE_NAME, version, views=views, log_level=program.log_level, scraped=scraped):
        from horde.telemetry_spans import instrument_client  # noqa: PLC0415 - costs a good part of a second

        instrument_client()


async def _run(
    configuration: Configuration, metrics_listener: socket.socket | None, lines: LogLines | None, *, viewed: bool
) -> int:
    from horde.worker.fleet import WorkerFleet  # noqa: PLC0415 - as above
    from horde.worker.metrics import WorkerMetrics  # noqa: PLC0415

    metrics = WorkerMetrics()
    fleet = WorkerFleet(configuration.workers, metrics=metrics)
    metrics.observe(lambda: fleet.activities)
    async with metrics_endpoint(metrics_listener):
        with _view_of(fleet, lines) if viewed else contextlib.nullcontext():
            return await _run_until_signalled(fleet)


def _view_of(fleet: "WorkerFleet", lines: LogLines | None) -> AbstractContextManager[object]:
    from horde.worker.view import TerminalView  # noqa: PLC0415 - who has no terminal needs none

    return TerminalView(fleet.activities, lines)


async def _run_until_signalled(fleet: "WorkerFleet") -> int:
    from horde.worker.daemon import WorkerStartError  # noqa: PLC0415 - as above

    serving = asyncio.create_task(fleet.run(), name="worker - fleet")
    signalled = False

    def handle_signal() -> None:
        nonlocal signalled
        if signalled:
            serving.cancel()
        signalled = True
        fleet.stop()

    _handle_signals(handle_signal)
    try:
        await serving
    except WorkerStartError as error:
        logger.error("{}", error)
        return _EXIT_START_FAILED
    except asyncio.CancelledError:
        logger.warning("Stopped at once; running jobs were dropped.")
        return _EXIT_FORCED
    return _EXIT_OK


def _handle_signals(handler: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # A terminal that is closed is no reason to stop where whoever started the program ignores it (nohup).
        if number is None or signal.getsignal(number) is signal.SIG_IGN:
            continue
        try:
            loop.add_signal_handler(number, handler)
        except NotImplementedError:
            # Windows: the loop cannot, the interpreter can.
            signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(handler))


if __name__ == "__main__":
    sys.exit(main())
