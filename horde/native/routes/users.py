"""The caller's own user."""

from starlette.requests import Request
from starlette.responses import Response

from horde.native.db import reads
from horde.native.http import counted_caller, json_answer, state_of
from horde.native.kudos import to_kudos
from horde.native.ledger import spendable_account
from horde.native.rate_limits import CallKind

__all__ = ["find_user"]


async def find_user(request: Request) -> Response:
    """``GET /api/v2/find_user``: whose key this is, and what it can spend."""
    user = await counted_caller(request, CallKind.READ)
    balance = await state_of(request).pool.fetchval(reads.READ_BALANCE, spendable_account(user.id))
    return json_answer(
        {
            "id": user.id,
            "username": user.name,
            "kudos": to_kudos(balance),
            "trusted": user.trusted,
            "moderator": user.moderator,
        },
    )
