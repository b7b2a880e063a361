"""The command ``horde``: one name for every program of the project."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app", "main"]

app = typer.Typer(
    name="horde",
    help="An OpenAI-compatible chat front for the AI Horde, with a native Horde and a worker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# The programs read their own arguments: what they do not know is theirs to say.
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _run_program(module: str, context: typer.Context) -> None:
    # Imported when asked for: a front has no use for the worker's modules, nor for the time they take to import.
    program = importlib.import_module(module)
    raise typer.Exit(program.main(context.args))


@app.command(context_settings=_PASSED_ON)
def front(context: typer.Context) -> None:
    """Serve OpenAI's chat completions API in front of a Horde."""
    _run_program("horde.oai.__main__", context)


@app.command(context_settings=_PASSED_ON)
def native(context: typer.Context) -> None:
    """Serve a native Horde."""
    _run_program("horde.native.__main__", context)


@app.command(context_settings=_PASSED_ON)
def admin(context: typer.Context) -> None:
    """Operate a native Horde: users, keys, kudos, workers, models, switches, the ledger's check."""
    _run_program("horde.native.admin.cli", context)


@app.command(context_settings=_PASSED_ON)
def worker(context: typer.Context) -> None:
    """Share a model server with a Horde."""
    _run_program("horde.worker.__main__", context)


@app.command()
def up(
    state_dir: Annotated[Path, typer.Option(help="Folder of the database, the users' keys and the logs.")] = Path(
        ".horde",
    ),
    front_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the front; 0 takes a free one.")] = 8000,
    native_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of the native Horde; 0 takes a free one."),
    ] = 8001,
    database_url: Annotated[
        str | None,
        typer.Option(help="A PostgreSQL of yours (postgresql://…) instead of the embedded one."),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(help="A Valkey or Redis of yours (redis://…) instead of the embedded one."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="A GGUF file to serve instead of the bundled model.")] = None,
    backend_url: Annotated[
        str | None,
        typer.Option(help="A model server of yours (its OpenAI base URL) instead of the embedded one."),
    ] = None,
    sample: Annotated[bool, typer.Option(help="Stream a sample reply once a worker is online.")] = True,  # noqa: FBT002 - typer's way
) -> None:
    """Start a whole Horde with a real model on this machine, until Ctrl-C."""
    from horde.local.console import Terminal  # noqa: PLC0415 - the other commands do without
    from horde.local.start import UpOptions  # noqa: PLC0415
    from horde.local.up import run_up  # noqa: PLC0415
    from horde.server import run_event_loop  # noqa: PLC0415
    from horde.telemetry import configure_logging  # noqa: PLC0415

    options = UpOptions(
        state_dir=state_dir,
        front_port=front_port,
        native_port=native_port,
        database_url=database_url,
        redis_url=redis_url,
        model=model,
        backend_url=backend_url,
        sample=sample,
    )
    configure_logging("up", level="WARNING", log_format="text")
    raise typer.Exit(run_event_loop(lambda: run_up(options, Terminal())))


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(app())


if __name__ == "__main__":
    main()
