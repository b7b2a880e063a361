"""Which of the front's requests get a server span; imported only when telemetry is on (TEL-11, TEL-13)."""

from typing import Final

from starlette.types import ASGIApp, Scope

from horde.telemetry_spans import TracedRoutes, instrument_client

__all__ = ["instrument_app", "instrument_client"]

_CHAT_PATH: Final = "/v1/chat/completions"
_MODELS_PATH: Final = "/v1/models"
_TRACED: Final = {("POST", _CHAT_PATH), ("GET", _MODELS_PATH)}
"""The routes that get a span. Probes come every few seconds; a path that is none of ours is a text of the client."""


def _find_route(scope: Scope) -> str | None:
    path: str = scope["path"]
    return path if (scope["method"], path) in _TRACED else None


def instrument_app(app: ASGIApp) -> ASGIApp:
    """Return the application with a server span for each chat request and each list of models.

    Args:
        app: The application that ``create_app`` built.
    """
    return TracedRoutes(app, _find_route)
