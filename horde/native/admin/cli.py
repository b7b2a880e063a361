"""``horde admin``: operate a Horde from the command line, over the database that its processes use.

It reads ``HORDE_NATIVE_DATABASE_URL`` like they do and needs none of them to run. Exit codes: 0 when done, 1 when
it cannot be done or the ledger does not balance, 2 for wrong arguments or settings.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any, Final, NoReturn

import asyncpg
import typer

from horde.native.admin import operations
from horde.native.admin.console import show_rows, tell
from horde.native.admin.ledger_check import prove_ledger
from horde.native.db.engine import DATABASE_ERRORS, DatabaseError, Pool, open_pool, prepare_database
from horde.native.db.traffic import TRAFFIC_DAYS
from horde.native.settings import SettingsError, load_settings

__all__ = ["app", "main"]

_FAILED: Final = 1
_WRONG_SETTINGS: Final = 2
_CHECK_SECONDS: Final = 3600.0
"""Longest time of one statement of the ledger's check, which reads all of it."""

_OPTIONS: Final[dict[str, Any]] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}

app = typer.Typer(name="admin", help="Operate a native Horde.", **_OPTIONS)
_users = typer.Typer(help="Who may use the Horde.", **_OPTIONS)
_keys = typer.Typer(help="The users' keys; only hashes are stored, so a key is shown once.", **_OPTIONS)
_kudos = typer.Typer(help="Move kudos between the Horde's purse and users.", **_OPTIONS)
_workers = typer.Typer(help="The workers.", **_OPTIONS)
_models = typer.Typer(help="The models that may be asked for.", **_OPTIONS)
_ledger = typer.Typer(help="The ledger of kudos.", **_OPTIONS)
for _name, _group in (
    ("users", _users),
    ("keys", _keys),
    ("kudos", _kudos),
    ("workers", _workers),
    ("models", _models),
    ("ledger", _ledger),
):
    app.add_typer(_group, name=_name)


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")]
UserName = Annotated[str, typer.Argument(help="The user's name.")]
WorkerName = Annotated[str, typer.Argument(help="The worker's name or id.")]
ModelName = Annotated[str, typer.Argument(help="The model's name.")]
Amount = Annotated[str, typer.Argument(help="Kudos, with at most two decimals.")]
OnOff = Annotated[Switch, typer.Argument(help="on or off.")]
Message = Annotated[str | None, typer.Option(help="Why, as those it concerns are told.")]


def _run[Result](work: Callable[[Pool], Awaitable[Result]], *, seconds: float | None = None) -> Result:
    """Do something with the Horde's database, and leave with a sentence and a code when it cannot be done."""
    try:
        settings = load_settings()
    except SettingsError as error:
        _leave(str(error), _WRONG_SETTINGS)

    async def connected() -> Result:
        url = settings.database_url.get_secret_value()
        timeout = seconds or settings.database_timeout_seconds
        async with open_pool(url, size=1, timeout_seconds=timeout, application_name="horde-admin") as pool:
            return await work(pool)

    try:
        return asyncio.run(connected())
    except operations.AdminError as error:
        _leave(str(error), _FAILED)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        _leave("The database has no Horde of this version: run `horde admin migrate`.", _FAILED)
    except (*DATABASE_ERRORS, ValueError) as error:
        _leave(f"The database of HORDE_NATIVE_DATABASE_URL cannot be used ({type(error).__name__}).", _FAILED)


def _leave(sentence: str, code: int) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


def _amount(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter("Kudos are a number with at most two decimals.") from None
    if not amount.is_finite() or amount <= 0:
        raise typer.BadParameter("Kudos are more than 0.")
    return amount


@_users.command("create")
def create_user(
    name: UserName,
    *,
    kudos: Annotated[str | None, typer.Option(help="Kudos to begin with.")] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="Its workers count as trusted.")] = False,
    moderator: Annotated[bool, typer.Option("--moderator", help="It may look after others' workers.")] = False,
    as_json: Json = False,
) -> None:
    """Make a user, and show its key this once."""
    amount = None if kudos is None else _amount(kudos)

    made = _run(lambda pool: operations.create_user(pool, name, kudos=amount, trusted=trusted, moderator=moderator))
    _show_key(made, as_json=as_json)


def _show_key(made: operations.NewKey, *, as_json: bool) -> None:
    tell(asdict(made), f"{made.user} has the key {made.api_key}\nIt is not shown again.", as_json=as_json)


@_users.command("list")
def list_users(*, as_json: Json = False) -> None:
    """List the users with their kudos."""
    show_rows(_run(operations.list_users), as_json=as_json)


@_users.command("show")
def show_user(name: UserName, *, as_json: Json = False) -> None:
    """Show one user."""
    show_rows(_run(lambda pool: operations.list_users(pool, name)), as_json=as_json)


@_users.command("disable")
def disable_user(name: UserName, *, as_json: Json = False) -> None:
    """Shut a user out, in all processes within five seconds; its kudos and workers stay."""
    _run(lambda pool: operations.set_disabled(pool, name, disabled=True))
    tell({"user": name, "disabled": True}, f"{name} is shut out.", as_json=as_json)


@_users.command("enable")
def enable_user(name: UserName, *, as_json: Json = False) -> None:
    """Let a user in again."""
    _run(lambda pool: operations.set_disabled(pool, name, disabled=False))
    tell({"user": name, "disabled": False}, f"{name} is let in.", as_json=as_json)


@_keys.command("rotate")
def rotate_key(name: UserName, *, as_json: Json = False) -> None:
    """Give a user a new key and show it this once; the one before works for five seconds at most."""
    _show_key(_run(lambda pool: operations.rotate_key(pool, name)), as_json=as_json)


@_keys.command("revoke")
def revoke_key(name: UserName, *, as_json: Json = False) -> None:
    """Take a user's key away; it works for five seconds at most."""
    _run(lambda pool: operations.revoke_key(pool, name))
    tell({"user": name, "has_key": False}, f"{name} has no key.", as_json=as_json)


@_kudos.command("award")
def award_kudos(name: UserName, amount: Amount, *, as_json: Json = False) -> None:
    """Move kudos from the Horde's purse to a user."""
    _move(name, _amount(amount), as_json=as_json)


@_kudos.command("take")
def take_kudos(name: UserName, amount: Amount, *, as_json: Json = False) -> None:
    """Move kudos from a user back to the Horde's purse."""
    _move(name, _amount(amount).copy_negate(), as_json=as_json)


def _move(name: str, amount: Decimal, *, as_json: bool) -> None:
    kudos = _run(lambda pool: operations.award_kudos(pool, name, amount)) / 100
    tell({"user": name, "kudos": kudos}, f"{name} has {kudos:.2f} kudos.", as_json=as_json)


@_workers.command("list")
def list_workers(*, as_json: Json = False) -> None:
    """List the workers."""
    show_rows(_run(operations.list_workers), as_json=as_json)


@_workers.command("show")
def show_worker(worker: WorkerName, *, as_json: Json = False) -> None:
    """Show one worker."""
    show_rows(_run(lambda pool: operations.list_workers(pool, worker)), as_json=as_json)


@_workers.command("maintenance")
def worker_maintenance(worker: WorkerName, switch: OnOff, *, message: Message = None, as_json: Json = False) -> None:
    """Withdraw a worker after the jobs it holds, or take it back."""
    on = switch is Switch.ON
    _run(lambda pool: operations.set_worker_maintenance(pool, worker, on=on, message=message))
    tell({"worker": worker, "maintenance": on}, f"Maintenance of {worker} is {switch}.", as_json=as_json)


@_workers.command("delete")
def delete_worker(worker: WorkerName, *, as_json: Json = False) -> None:
    """Forget a worker that has no jobs on record."""
    _run(lambda pool: operations.delete_worker(pool, worker))
    tell({"worker": worker, "deleted": True}, f"{worker} is forgotten.", as_json=as_json)


@_models.command("list")
def list_models(*, as_json: Json = False) -> None:
    """List the known models."""
    show_rows(_run(operations.list_models), as_json=as_json)


@_models.command("add")
def add_model(
    name: ModelName,
    *,
    parameters_billions: Annotated[
        float | None, typer.Option(min=0.001, max=10_000, help="Its size, which its price follows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a model known, or change its size."""
    _run(lambda pool: operations.add_model(pool, name, parameters_billions))
    fact = {"model": name, "parameters_billions": parameters_billions}
    tell(fact, f"{name} is known.", as_json=as_json)


@_models.command("delete")
def delete_model(name: ModelName, *, as_json: Json = False) -> None:
    """Forget a model; a worker that declares it makes it known again, unless models are added by hand alone."""
    _run(lambda pool: operations.delete_model(pool, name))
    tell({"model": name, "deleted": True}, f"{name} is forgotten.", as_json=as_json)


@_models.command("admission")
def model_admission(name: ModelName, switch: OnOff, *, as_json: Json = False) -> None:
    """Take requests for a model in, or refuse them (ChatAdmissionDisabled)."""
    on = switch is Switch.ON
    _run(lambda pool: operations.set_model_admission(pool, name, on=on))
    tell({"model": name, "admits": on}, f"Admission for {name} is {switch}.", as_json=as_json)


@app.command("applications")
def list_applications(
    *,
    days: Annotated[int, typer.Option(min=1, max=TRAFFIC_DAYS, help="Days by UTC, today the last of them.")] = 30,
    as_json: Json = False,
) -> None:
    """List what each application (the first part of `Client-Agent`) sent and was charged, the busiest first."""
    show_rows(_run(lambda pool: operations.list_applications(pool, days)), as_json=as_json)


@app.command("switches")
def show_switches(*, as_json: Json = False) -> None:
    """Show the switches of the whole Horde."""

    async def work(pool: Pool) -> list[operations.Row]:
        return [await operations.read_switches(pool)]

    show_rows(_run(work), as_json=as_json)


@app.command("maintenance")
def maintenance(switch: OnOff, *, message: Message = None, as_json: Json = False) -> None:
    """Refuse every submit (MaintenanceMode), or end that; what was taken in is served to its end."""
    on = switch is Switch.ON
    _run(lambda pool: operations.set_maintenance(pool, on=on, message=message))
    tell({"maintenance": on}, f"Maintenance is {switch}.", as_json=as_json)


@app.command("admission")
def admission(switch: OnOff, *, as_json: Json = False) -> None:
    """Take chat requests in, or refuse them (ChatAdmissionDisabled)."""
    on = switch is Switch.ON
    _run(lambda pool: operations.set_admission(pool, on=on))
    tell({"admits": on}, f"Admission is {switch}.", as_json=as_json)


@app.command("migrate")
def migrate() -> None:
    """Bring the database to the newest schema, as a starting Horde does."""
    try:
        prepare_database(load_settings().database_url.get_secret_value(), migrates=True)
    except SettingsError as error:
        _leave(str(error), _WRONG_SETTINGS)
    except DatabaseError as error:
        _leave(str(error), _FAILED)


@_ledger.command("check")
def check_ledger(*, as_json: Json = False) -> None:
    """Prove that the ledger balances; exit code 1 and the exact findings when it does not. Locks nothing."""
    findings = _run(prove_ledger, seconds=_CHECK_SECONDS)
    if findings or as_json:
        show_rows([asdict(finding) for finding in findings], as_json=as_json)
    else:
        tell({}, "The ledger balances.", as_json=False)
    raise typer.Exit(_FAILED if findings else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    Args:
        arguments: What follows ``horde admin``; the process's own when None.
    """
    command = typer.main.get_command(app)
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        command(args=given, prog_name="horde admin")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
