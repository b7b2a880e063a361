"""Accounts of the ledger: which number belongs to whom; pure.

Every user has two accounts, so that the number of each follows from the user's: what can be spent, and what is held
for running requests. The Horde's own purse has eight, so that settlements of the anonymous user do not queue for one
row. Entries are written by the statements that settle a request (:mod:`horde.native.db.queries`), in the same
transaction as what they pay for; nothing else writes them but :func:`horde.native.users.ensure_user`.
"""

from typing import Final
from uuid import UUID

__all__ = ["ANONYMOUS_USER_ID", "held_account", "horde_account", "payer_account", "spendable_account"]

ANONYMOUS_USER_ID: Final = 0
"""The user of every request without a key; it is never charged and can hold nothing."""

_HORDE_SHARDS: Final = 8


def spendable_account(user_id: int) -> int:
    """Return the account that holds what a user can spend."""
    return 2 * user_id


def held_account(user_id: int) -> int:
    """Return the account that holds what is set aside for a user's running requests."""
    return 2 * user_id + 1


def horde_account(request_id: UUID) -> int:
    """Return the Horde's account that pays for a request; requests spread over all of them."""
    return -(1 + request_id.int % _HORDE_SHARDS)


def payer_account(user_id: int, request_id: UUID) -> int:
    """Return the account a request is charged to: the user's, or the Horde's for the anonymous user."""
    return horde_account(request_id) if user_id == ANONYMOUS_USER_ID else spendable_account(user_id)
