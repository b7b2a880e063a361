"""``python -m horde.worker``: share a model server with a Horde."""

import argparse
import asyncio
import importlib.metadata
import signal
import sys
from collections.abc import Callable, Sequence

from loguru import logger

from horde.server import run_event_loop
from horde.telemetry import configure_logging, shut_down_telemetry, start_telemetry
from horde.worker.settings import SettingsError, WorkerSettings, load_settings

__all__ = ["main"]

_SERVICE_NAME = "horde-worker"

_EXIT_OK = 0
_EXIT_FORCED = 1
_EXIT_WRONG_SETTINGS = 2
_EXIT_START_FAILED = 3


def _parse_arguments(argv: Sequence[str] | None) -> dict[str, object]:
    parser = argparse.ArgumentParser(
        prog="horde worker",
        description="Share a model server with a Horde. Every option is also a setting, HORDE_WORKER_*.",
    )
    parser.add_argument("--horde", dest="horde_url", metavar="URL", help="address of the Horde")
    parser.add_argument("--key", dest="api_key", help="key of the worker's owner")
    parser.add_argument("--backend", dest="backend_url", metavar="URL", help="OpenAI base URL of the model server")
    parser.add_argument("--model", help="model to share, as the model server lists it")
    parser.add_argument("--name", help="name of the worker")
    parser.add_argument("--threads", type=int, help="jobs served at a time")
    return vars(parser.parse_args(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker until SIGTERM or SIGINT.

    Returns:
        0 after a stop by signal, 1 when a second signal cut it short, 2 for wrong settings, 3 when it could not serve.
    """
    try:
        settings = load_settings(_parse_arguments(argv))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_WRONG_SETTINGS
    configure_logging(_SERVICE_NAME, level=settings.log_level, log_format=settings.log_format)
    # Metrics are the Horde's and the model server's; a worker exports its calls and its log.
    version = importlib.metadata.version("horde-oai")
    if start_telemetry(_SERVICE_NAME, version, views=(), log_level=settings.log_level):
        from horde.telemetry_spans import instrument_client  # noqa: PLC0415 - costs a good part of a second

        instrument_client()
    try:
        return run_event_loop(lambda: _run(settings))
    finally:
        shut_down_telemetry()


async def _run(settings: WorkerSettings) -> int:
    # The SDK logs while it is imported: after the log is configured.
    from horde.worker.daemon import WorkerDaemon, WorkerStartError  # noqa: PLC0415 - see above

    daemon = WorkerDaemon(settings)
    serving = asyncio.create_task(daemon.run(), name="worker - daemon")
    signalled = False

    def handle_signal() -> None:
        nonlocal signalled
        if signalled:
            serving.cancel()
        signalled = True
        daemon.stop()

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
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, handler)
        except NotImplementedError:
            # Windows: the loop cannot, the interpreter can.
            signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(handler))


if __name__ == "__main__":
    sys.exit(main())
