"""Times and server spans of the Horde's calls, by the template of their route; used only when somebody reads them."""

import time
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horde.native.metrics import NativeMetrics

__all__ = ["MeasuredCalls", "instrument_app"]

_PROBES = frozenset({"/healthz", "/readyz"})


class MeasuredCalls:
    """Measures every call that reached a route; the path of another is a text of its caller.

    Args:
        app: The application.
        metrics: Where its calls are counted.
    """

    def __init__(self, app: ASGIApp, metrics: NativeMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status_code = 500

        async def watched_send(message: Message) -> None:
            nonlocal status_code
            if message["type"] == "http.response.start":
                status_code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            route = scope.get("route")
            if isinstance(route, Route) and route.path_format not in _PROBES:
                self._metrics.call_ended(time.perf_counter() - started, scope["method"], route.path_format, status_code)


def _route_finder(routes: Sequence[BaseRoute]) -> Callable[[Scope], str | None]:
    """Return what finds the template of a call's route, and None for a probe or a path that is none."""
    traced = [route for route in routes if isinstance(route, Route) and route.path_format not in _PROBES]

    def find(scope: Scope) -> str | None:
        for route in traced:
            if scope["method"] in (route.methods or ()) and route.path_regex.match(scope["path"]):
                return route.path_format
        return None

    return find


def instrument_app(app: Starlette, *, measured: bool, traced: bool) -> ASGIApp:
    """Return the application as it is served: measured when somebody reads metrics, with spans when they are exported.

    Args:
        app: The Horde.
        measured: Whether calls are timed.
        traced: Whether calls get server spans.
    """
    served: ASGIApp = MeasuredCalls(app, NativeMetrics()) if measured else app
    if not traced:
        return served
    from horde.telemetry_spans import TracedRoutes  # noqa: PLC0415 - costs a good part of a second

    return TracedRoutes(served, _route_finder(app.routes))
