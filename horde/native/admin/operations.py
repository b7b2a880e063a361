"""What an administrator does, each one statement; the command line and tests call these."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import asyncpg

from horde.native.db import administration as statements
from horde.native.db import traffic
from horde.native.db.engine import Pool
from horde.native.ledger import MAX_BALANCE_CENTS, MAX_PURSE_CENTS, AmountError, exact_cents
from horde.native.users import hash_api_key

__all__ = [
    "AdminError",
    "NewKey",
    "add_model",
    "award_kudos",
    "create_user",
    "delete_model",
    "delete_worker",
    "list_applications",
    "list_models",
    "list_users",
    "list_workers",
    "read_switches",
    "revoke_key",
    "rotate_key",
    "set_admission",
    "set_disabled",
    "set_maintenance",
    "set_model_admission",
    "set_worker_maintenance",
]

_GRANTING_ACCOUNT: Final = -1
"""The Horde's account that awards are taken from and returned to."""

_KEY_BYTES: Final = 24
_MAX_NAME: Final = 128
_MAX_MESSAGE: Final = 256

type Row = Mapping[str, Any]
"""What is known of a user, a worker or a model, by column."""


class AdminError(Exception):
    """What was asked for cannot be done; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made just now; this is the only time it is known.

    Attributes:
        user: The user's name.
        api_key: The key.
    """

    user: str
    api_key: str


async def create_user(
    pool: Pool, name: str, *, kudos: Decimal | None = None, trusted: bool = False, moderator: bool = False
) -> NewKey:
    """Make a user with a key.

    Args:
        pool: The Horde's database.
        name: Public name.
        kudos: Kudos to begin with.
        trusted: Whether its workers count as trusted.
        moderator: Whether it may look after other users' workers.

    Raises:
        AdminError: The name is taken or none, or the amount is none.
    """
    name = _name(name)
    if kudos is not None:
        # Before the user is made: its key is told once, at the end.
        _cents(kudos)
    key = secrets.token_urlsafe(_KEY_BYTES)
    made = await pool.fetchval(statements.CREATE_USER, name, hash_api_key(key), trusted, moderator)
    if made is None:
        raise AdminError(f"There is a user named '{name}' already.")
    if kudos is not None:
        await award_kudos(pool, name, kudos)
    return NewKey(name, key)


async def list_users(pool: Pool, name: str | None = None) -> list[Row]:
    """Return all users, or the one of that name; kudos in hundredths.

    Raises:
        AdminError: Nobody has that name.
    """
    return _some(await pool.fetch(statements.LIST_USERS, name), "user", name)


async def rotate_key(pool: Pool, name: str) -> NewKey:
    """Give a user a new key; the one before is refused from then on, within seconds.

    Raises:
        AdminError: There is no such user, or it is the anonymous one.
    """
    key = secrets.token_urlsafe(_KEY_BYTES)
    _one(await pool.fetchval(statements.SET_KEY, name, hash_api_key(key)), "user", name)
    return NewKey(name, key)


async def revoke_key(pool: Pool, name: str) -> None:
    """Take a user's key away.

    Raises:
        AdminError: There is no such user, or it is the anonymous one.
    """
    _one(await pool.fetchval(statements.SET_KEY, name, None), "user", name)


async def set_disabled(pool: Pool, name: str, *, disabled: bool) -> None:
    """Shut a user out, or let it in again; its key, kudos and workers stay.

    Raises:
        AdminError: There is no such user, or it is the anonymous one.
    """
    _one(await pool.fetchval(statements.SET_DISABLED, name, disabled), "user", name)


async def award_kudos(pool: Pool, name: str, kudos: Decimal) -> int:
    """Move kudos from the Horde's purse to a user, or back when negative, and return the new balance in hundredths.

    Raises:
        AdminError: There is no such user, the amount is 0, too large or finer than a hundredth, or the balance would
            be too large.
    """
    row = await pool.fetchrow(
        statements.MOVE_KUDOS, name, _GRANTING_ACCOUNT, _cents(kudos), MAX_BALANCE_CENTS, MAX_PURSE_CENTS
    )
    balance = _one(row, "user", name)["balance"]
    if balance is None:
        raise AdminError(
            f"Nothing was moved: a balance is {MAX_BALANCE_CENTS // 100:,} kudos at most, and so is a debt."
        )
    return int(balance)


async def list_workers(pool: Pool, worker: str | None = None) -> list[Row]:
    """Return all workers, or the one of that name or id.

    Raises:
        AdminError: There is no such worker.
    """
    return _some(await pool.fetch(statements.LIST_WORKERS, worker), "worker", worker)


async def set_worker_maintenance(pool: Pool, worker: str, *, on: bool, message: str | None = None) -> None:
    """Withdraw a worker, which is told the message on its next pop, or take it back.

    Raises:
        AdminError: There is no such worker.
    """
    text = _message(message) if on else None
    _one(await pool.fetchval(statements.SET_WORKER_MAINTENANCE, worker, on, text), "worker", worker)


async def delete_worker(pool: Pool, worker: str) -> None:
    """Forget a worker; one that still pops comes back as a new one.

    Raises:
        AdminError: There is no such worker, or jobs of it are on record.
    """
    try:
        found = await pool.fetchval(statements.DELETE_WORKER, worker)
    except asyncpg.ForeignKeyViolationError:
        raise AdminError(
            f"Jobs of the worker '{worker}' are on record. Put it in maintenance, and delete it 40 minutes after its "
            "last job."
        ) from None
    _one(found, "worker", worker)


async def list_models(pool: Pool, name: str | None = None) -> list[Row]:
    """Return all known models, or the one of that name.

    Raises:
        AdminError: The model is not known.
    """
    return _some(await pool.fetch(statements.LIST_MODELS, name), "model", name)


async def add_model(pool: Pool, name: str, parameters_billions: float | None = None) -> None:
    """Make a model known, or change the size that its price follows (None: the one its name states).

    Raises:
        AdminError: The name is none.
    """
    await pool.execute(statements.ADD_MODEL, _name(name), parameters_billions)


async def delete_model(pool: Pool, name: str) -> None:
    """Forget a model.

    Raises:
        AdminError: The model is not known.
    """
    _one(await pool.fetchval(statements.DELETE_MODEL, name), "model", name)


async def set_model_admission(pool: Pool, name: str, *, on: bool) -> None:
    """Take requests for a model in, or refuse them; those that wait are served (NAT-16).

    Raises:
        AdminError: The model is not known.
    """
    _one(await pool.fetchval(statements.SET_MODEL_ADMISSION, name, on), "model", name)


async def list_applications(pool: Pool, days: int) -> list[Row]:
    """Return what each application sent in the last days, the busiest first (NAT-19); kudos in hundredths.

    Args:
        pool: The Horde's database.
        days: Days by UTC, today the last of them.
    """
    return _some(await pool.fetch(traffic.LIST_APPLICATIONS, days), "application", None)


async def read_switches(pool: Pool) -> Row:
    """Return the switches of the whole Horde."""
    return _some(await pool.fetch(statements.READ_SWITCHES), "state", None)[0]


async def set_maintenance(pool: Pool, *, on: bool, message: str | None = None) -> None:
    """Refuse every submit with the message, or end that; what was taken in is served to its end."""
    await pool.execute(statements.SET_MAINTENANCE, on, _message(message) if on else None)


async def set_admission(pool: Pool, *, on: bool) -> None:
    """Take chat requests in, or refuse them (NAT-16)."""
    await pool.execute(statements.SET_ADMISSION, on)


def _cents(kudos: Decimal) -> int:
    try:
        return exact_cents(kudos)
    except AmountError as error:
        raise AdminError(str(error)) from None


def _name(text: str) -> str:
    if not text.strip() or len(text) > _MAX_NAME or not text.isprintable():
        raise AdminError(f"A name has 1 to {_MAX_NAME} printable characters.")
    return text


def _message(text: str | None) -> str | None:
    if text is not None and (len(text) > _MAX_MESSAGE or not text.isprintable()):
        raise AdminError(f"A message has at most {_MAX_MESSAGE} printable characters.")
    return text


def _one(found: Any, what: str, name: str) -> Any:  # noqa: ANN401 - whatever the statement returned
    if found is None:
        raise AdminError(f"There is no {what} '{name}' that this can be done to.")
    return found


def _some(rows: list[asyncpg.Record], what: str, name: str | None) -> list[Row]:
    if name is not None and not rows:
        raise AdminError(f"There is no {what} '{name}'.")
    return [dict(row) for row in rows]
