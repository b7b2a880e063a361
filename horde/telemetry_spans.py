"""Spans of a program's server and of its HTTP calls; imported only when telemetry is on (TEL-7, TEL-11)."""

from collections.abc import Callable
from typing import Any, Final

from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

__all__ = ["TracedRoutes", "instrument_client"]

_CONTEXT_HEADERS: Final = frozenset({b"traceparent", b"tracestate"})
_REAL_SCOPE: Final = "horde.scope"


class TracedRoutes:
    """Shows the instrumentation what a span may hold, and the application the request as it came.

    The instrumentation records the client's address, its agent and the query. It is given a request without them, so
    that no setting of it can bring them back (TEL-14). A span lasts until its answer has ended, a stream's with its
    last byte (TEL-15).

    Args:
        app: The application.
        find_route: Returns the template of a request's route, or None when it gets no span: a path that is none of
            the program's is a text of the client.
    """

    def __init__(self, app: ASGIApp, find_route: Callable[[Scope], str | None]) -> None:
        self._app = app
        self._find_route = find_route
        self._traced = OpenTelemetryMiddleware(
            self._serve,
            default_span_details=_name_span,
            exclude_spans=["receive", "send"],
            meter_provider=NoOpMeterProvider(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = self._find_route(scope) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        shown: dict[str, Any] = {
            "type": "http",
            "asgi": scope["asgi"],
            "http_version": scope["http_version"],
            "method": scope["method"],
            "scheme": scope["scheme"],
            "path": route,
            "root_path": "",
            "query_string": b"",
            "server": scope.get("server"),
            "headers": [(name, value) for name, value in scope["headers"] if name in _CONTEXT_HEADERS],
            _REAL_SCOPE: scope,
        }
        await self._traced(shown, receive, send)

    async def _serve(self, shown: Scope, receive: Receive, send: Send) -> None:
        await self._app(shown[_REAL_SCOPE], receive, send)


def _name_span(scope: Scope) -> tuple[str, dict[str, str]]:
    """Return a server span's name and its route, without which Logfire shortens the name to the method."""
    return f"{scope['method']} {scope['path']}", {"http.route": scope["path"]}


def instrument_client() -> None:
    """Give each HTTP call a client span, and the one called the trace in ``traceparent`` (TEL-7)."""
    AioHttpClientInstrumentor().instrument(
        url_filter=lambda url: str(_without_secrets(URL(url))), meter_provider=NoOpMeterProvider()
    )


def _without_secrets(url: URL) -> URL:
    return url.with_user(None).with_query(None).with_fragment(None)
