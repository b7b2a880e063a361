"""``/healthz`` and ``/readyz`` (decision U32): parts are named, never an address or key."""

from typing import Any, Final

from starlette.types import Receive, Scope, Send

from horde.oai.answers import send_json
from horde.oai.state import FrontState

__all__ = ["healthz", "readyz"]

_ROOTS_AWAY_SECONDS: Final = 30.0
"""How long the Horde may be silent before this front should get no traffic."""


async def healthz(_state: FrontState, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Say that the process is alive, also while it drains."""
    await send_json(send, 200, {"status": "ok"})


async def readyz(state: FrontState, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Say whether this front should get traffic: 503 while draining and when the Horde has been away for 30 s."""
    status, body = _readiness(state)
    await send_json(send, status, body)


def _readiness(state: FrontState) -> tuple[int, dict[str, Any]]:
    if state.stopping.is_set():
        return 503, {"status": "draining"}
    if state.client.roots.away_seconds > _ROOTS_AWAY_SECONDS:
        return 503, {"status": "unavailable", "unavailable": ["horde"]}
    if state.redis_alive() is False:
        return 200, {"status": "degraded", "degraded": ["redis"]}
    return 200, {"status": "ok"}
