"""Users: whose key it is, and making one."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from time import monotonic
from typing import Final

import asyncpg

from horde.chat_contract import ANONYMOUS_API_KEY
from horde.native.db import reads
from horde.native.db.engine import Pool
from horde.native.errors import RefusalError, ReturnCode
from horde.native.ledger import ANONYMOUS_USER_ID, exact_cents, spendable_account

__all__ = ["User", "UserDirectory", "ensure_user", "hash_api_key"]

_CACHE_SECONDS: Final = 5.0
"""How long a key is believed without asking again; a revoked key still works for so long."""

_CACHE_SIZE: Final = 10_000
"""Keys remembered; the oldest is forgotten first."""

_MAX_KEY_LENGTH: Final = 256
_GRANTING_ACCOUNT: Final = -1


@dataclass(frozen=True, slots=True)
class User:
    """Who calls.

    Attributes:
        id: Number of the user; 0 is the anonymous user.
        name: Public name.
        trusted: Whether its workers serve requests that want trusted workers.
        moderator: Whether it may look after other users' workers.
    """

    id: int
    name: str
    trusted: bool
    moderator: bool

    @property
    def is_anonymous(self) -> bool:
        """Whether this is everybody who has no key."""
        return self.id == ANONYMOUS_USER_ID


_ANONYMOUS: Final = User(ANONYMOUS_USER_ID, "Anonymous", trusted=False, moderator=False)


def hash_api_key(api_key: str) -> bytes:
    """Return what is stored of a key.

    Keys are made of 128 random bits or more, so a plain hash cannot be searched; a slow one would be paid on each call.
    """
    return hashlib.sha256(api_key.encode()).digest()


class UserDirectory:
    """Finds users by key, and remembers each answer for a few seconds.

    Args:
        pool: The Horde's database.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: OrderedDict[bytes, tuple[float, User]] = OrderedDict()

    async def authenticate(self, api_key: str | None) -> User:
        """Return the user of a key; the anonymous user when there is none.

        Raises:
            RefusalError: ``InvalidAPIKey``, nobody has this key.
        """
        if not api_key or api_key == ANONYMOUS_API_KEY:
            return _ANONYMOUS
        if len(api_key) > _MAX_KEY_LENGTH:
            raise RefusalError(ReturnCode.INVALID_API_KEY)
        digest = hash_api_key(api_key)
        known = self._known.get(digest)
        if known is not None and known[0] > monotonic():
            return known[1]
        row = await self._pool.fetchrow(reads.FIND_USER_BY_KEY, digest)
        if row is None:
            self._known.pop(digest, None)
            raise RefusalError(ReturnCode.INVALID_API_KEY)
        user = User(row["id"], row["name"], row["trusted"], row["moderator"])
        self._known[digest] = (monotonic() + _CACHE_SECONDS, user)
        self._known.move_to_end(digest)
        while len(self._known) > _CACHE_SIZE:
            self._known.popitem(last=False)
        return user


async def ensure_user(
    pool: Pool,
    name: str,
    api_key: str,
    *,
    kudos: int = 0,
    trusted: bool = False,
    moderator: bool = False,
) -> int:
    """Make sure that a user of this name exists and has this key; return its number.

    Idempotent: a second call changes the key when it is another one, and grants no kudos again.

    Args:
        pool: The Horde's database.
        name: Public name, unique.
        api_key: The key; only its hash is stored.
        kudos: Kudos granted when the user is made.
        trusted: Whether its workers count as trusted.
        moderator: Whether it may look after other users' workers.

    Raises:
        ValueError: The key is another user's, or the anonymous user's, or the kudos are more than a balance may be.
    """
    if api_key == ANONYMOUS_API_KEY or not api_key:
        raise ValueError("This key belongs to the anonymous user.")
    granted = exact_cents(Decimal(kudos)) if kudos > 0 else 0
    async with pool.acquire() as connection, connection.transaction():
        try:
            made = await connection.fetchrow(reads.CREATE_USER, name, hash_api_key(api_key), trusted, moderator)
        except asyncpg.UniqueViolationError:
            raise ValueError("Another user has this key.") from None
        if made is None:
            raise ValueError("The user could not be made.")
        if made["created"] and granted:
            await connection.execute(reads.GRANT_KUDOS, _GRANTING_ACCOUNT, spendable_account(made["id"]), granted)
    return int(made["id"])
