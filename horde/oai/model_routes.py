"""``GET /v1/models`` and ``GET /v1/models/{id}`` (rules MDL)."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from horde.oai.answers import send_error, send_json
from horde.oai.authorization import authorization_values, read_api_key
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.state import FrontState

__all__ = ["list_models", "show_model"]

_HTTP_OK: Final = 200


async def list_models(state: FrontState, scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer every model that an online chat worker serves (MDL-1)."""
    try:
        read_api_key(authorization_values(scope))
        cards = await state.catalog.cards()
    except ChatFrontError as error:
        await send_error(send, error)
    else:
        await send_json(send, _HTTP_OK, {"object": "list", "data": list(cards.values())})


async def show_model(state: FrontState, scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer one model by its id, which may hold slashes."""
    try:
        read_api_key(authorization_values(scope))
        card = _find(await state.catalog.cards(), scope["path_params"]["model_id"])
    except ChatFrontError as error:
        await send_error(send, error)
    else:
        await send_json(send, _HTTP_OK, card)


def _find(cards: Mapping[str, dict[str, Any]], model_id: str) -> dict[str, Any]:
    if model_id not in cards:
        raise ChatFrontError(
            FrontCode.MODEL_NOT_FOUND, f"No online worker serves a model '{model_id[:128]}'.", param="model"
        )
    return cards[model_id]
