"""Accounts of the ledger: which number belongs to whom; pure.

Every user has two accounts, so that the number of each follows from the user's: what can be spent, and what is held
for running requests. The Horde's own purse has eight, so that settlements of the anonymous user do not queue for one
row. Entries are written by the statements that settle a request (:mod:`horde.native.db.queries`), in the same
transaction as what they pay for; nothing else writes them but :func:`horde.native.users.ensure_user`.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Final
from uuid import UUID

__all__ = [
    "ANONYMOUS_USER_ID",
    "MAX_BALANCE_CENTS",
    "MAX_PURSE_CENTS",
    "AmountError",
    "exact_cents",
    "held_account",
    "horde_account",
    "payer_account",
    "spendable_account",
]

ANONYMOUS_USER_ID: Final = 0
"""The user of every request without a key; it is never charged and can hold nothing."""

_HORDE_SHARDS: Final = 8

MAX_BALANCE_CENTS: Final = 10**15
"""The most that awards make a user's balance, or takes its debt: ten million million kudos (decision 0046). It is exact
as a JSON number, and a job's price is under a millionth of it, so that no settlement can ever leave a 64-bit column."""

MAX_PURSE_CENTS: Final = 4 * 10**18
"""The most that awards make the debt of the Horde's purse; under half of what its column holds."""

_MAX_DIGITS: Final = 50


class AmountError(ValueError):
    """The amount is none that can be moved; the message is one sentence."""


def exact_cents(kudos: Decimal) -> int:
    """Return an amount in hundredths; no context of decimal arithmetic rounds it on the way.

    Raises:
        AmountError: It is 0, no number, finer than a hundredth, or more than a balance may be.
    """
    _, digits, exponent = kudos.as_tuple()
    if not isinstance(exponent, int) or len(digits) > _MAX_DIGITS or abs(exponent) > _MAX_DIGITS:
        cents = Fraction(0)
    else:
        cents = Fraction(kudos) * 100
    if not cents or cents.denominator != 1 or abs(cents) > MAX_BALANCE_CENTS:
        limit = MAX_BALANCE_CENTS // 100
        raise AmountError(f"An amount has at most two decimals, is not 0, and is at most {limit:,} kudos.")
    return int(cents)


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
