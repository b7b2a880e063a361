"""The front as an application: its state, its life-cycle, its routes. What it uses, it imports.

Names of the reference document's code map that are defined in neighbours are importable from here.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from loguru import logger
from opentelemetry.metrics import Meter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.client_address import ClientAddresses
from horde.oai.admission import InflightLimiter, InflightSlot
from horde.oai.answers import send_error
from horde.oai.api_document import docs_asset, docs_page, openapi_json
from horde.oai.background import BackgroundTasks
from horde.oai.body import BodyReader
from horde.oai.cancel import MAX_FAILED_CANCELS, Cancels
from horde.oai.chat import chat_completions
from horde.oai.drain import drain
from horde.oai.errors import ChatFrontError
from horde.oai.health import healthz, readyz
from horde.oai.horde_client import HordeClient, cancel_max_connections, create_http_client
from horde.oai.metrics import FrontMetrics
from horde.oai.middleware import BrowserAccess
from horde.oai.model_list import ModelCatalog
from horde.oai.model_routes import list_models, show_model
from horde.oai.open_records import OpenRecords
from horde.oai.open_requests import OpenRequestKeeper
from horde.oai.redis_client import open_redis
from horde.oai.refusals import NATIVE_FIELD_PARAMETERS
from horde.oai.relay import DeltaRelay
from horde.oai.roots import Roots, call_away_roots
from horde.oai.routing_errors import answer_routing_error, internal_error
from horde.oai.sealed_caller import CallerSealer
from horde.oai.settings import FrontSettings
from horde.oai.spans import DeltaReadSpans
from horde.oai.state import FrontState
from horde.oai.submit import Submitter
from horde.oai.trace import RequestTrace
from horde.oai.waiter import CompletionSignalListener, DeltaStreamReader

__all__ = [
    "HORDE_CHAT_REQUEST_EXPIRY_SECONDS",
    "MAX_FAILED_CANCELS",
    "NATIVE_FIELD_PARAMETERS",
    "ChatFrontError",
    "DeltaRelay",
    "FrontState",
    "InflightLimiter",
    "InflightSlot",
    "RequestTrace",
    "create_app",
]

HORDE_CHAT_REQUEST_EXPIRY_SECONDS: Final = CHAT_REQUEST_EXPIRY_SECONDS
"""After this a request has ended by itself, and its cancel is no longer retried (CAN-8)."""


type Handler = Callable[[FrontState, Scope, Receive, Send], Awaitable[None]]


class _Endpoint:
    """Hands a route's handler the state that the lifespan made."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a defect of the front is answered in the envelope of every other error."""
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._handler(scope["state"]["front"], scope, receive, watched_send)
        except Exception as defect:  # the outermost edge of a request
            if started:
                raise  # The server logs it and cuts the response off, which tells the client that it is not whole.
            logger.opt(exception=defect).error("A request for {!r} met a defect of the front", scope["path"])
            await send_error(send, internal_error())


ROUTES: Final = (
    Route("/v1/chat/completions", _Endpoint(chat_completions), methods=["POST"]),
    Route("/v1/models", _Endpoint(list_models), methods=["GET"]),
    Route("/v1/models/{model_id:path}", _Endpoint(show_model), methods=["GET"]),
    Route("/healthz", _Endpoint(healthz), methods=["GET"]),
    Route("/readyz", _Endpoint(readyz), methods=["GET"]),
    Route("/openapi.json", _Endpoint(openapi_json), methods=["GET"]),
    Route("/docs", _Endpoint(docs_page), methods=["GET"]),
    Route("/docs/{name}", _Endpoint(docs_asset), methods=["GET"]),
)


def create_app(
    settings: FrontSettings,
    *,
    meter: Meter | None = None,
    stopping: asyncio.Event | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """Return the front.

    Args:
        settings: The settings, read once by the caller.
        meter: Where instruments are created; the global provider's when none is given (MAP-39).
        stopping: Set by the server when the process was told to stop; the drain begins then. The application sets it
            itself when it cannot go on.
        on_failure: Called when the front cannot go on, before it sets ``stopping``: the stop is then no clean one.
    """
    draining = stopping if stopping is not None else asyncio.Event()

    def give_up() -> None:
        on_failure()
        draining.set()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[dict[str, FrontState]]:
        async with open_front(settings, meter=meter, stopping=draining, on_failure=give_up) as state:
            yield {"front": state}

    app = Starlette(routes=ROUTES, lifespan=lifespan, exception_handlers={HTTPException: answer_routing_error})
    app.router.redirect_slashes = False
    return BrowserAccess(app)


@asynccontextmanager
async def open_front(
    settings: FrontSettings,
    *,
    meter: Meter | None = None,
    stopping: asyncio.Event,
    on_failure: Callable[[], None],
) -> AsyncGenerator[FrontState]:
    """Open everything that lives as long as the process, and close it in reverse.

    Args:
        settings: The settings.
        meter: Where instruments are created.
        stopping: Set when the process was told to stop.
        on_failure: Called when a task that serves the whole process ended by itself.
    """
    metrics = FrontMetrics(meter)
    records = OpenRecords() if settings.redis_url and settings.open_requests_secret else None
    async with AsyncExitStack() as held:
        session = await held.enter_async_context(create_http_client(settings.call_slots))
        cancel_session = await held.enter_async_context(create_http_client(cancel_max_connections(settings.call_slots)))
        client = HordeClient(
            session,
            cancel_session,
            Roots(settings.horde_urls),
            call_slots=settings.call_slots,
            call_seconds=settings.call_timeout_seconds,
            observer=metrics,
        )
        cancels = Cancels(
            client,
            timeout_seconds=settings.cancel_timeout_seconds,
            retry_seconds=settings.cancel_retry_seconds,
            observer=metrics,
            records=records,
        )
        keeper = await _open_keeper(held, settings, records, cancels)
        listener, reader = await _open_streams(held, settings)
        state = _build_state(settings, metrics, client, cancels, stopping, listener, reader)
        held.push_async_callback(state.catalog.close)
        if keeper is not None:
            held.push_async_callback(keeper.leave)
        held.push_async_callback(cancels.drain)
        group = await held.enter_async_context(BackgroundTasks(on_failure))
        group.start("front - cancel retries", cancels.run())
        group.start("front - calls to a Horde that is away", call_away_roots(client.roots, state.catalog.refresh))
        group.start("front - drain", drain(state))
        if listener is not None and reader is not None:
            group.start("front - signal listener", listener.run())
            group.start("front - delta reader", reader.run())
        if keeper is not None:
            group.start("front - open requests", keeper.run())
        yield state


async def _open_keeper(
    held: AsyncExitStack, settings: FrontSettings, records: OpenRecords | None, cancels: Cancels
) -> OpenRequestKeeper | None:
    if records is None or settings.redis_url is None or settings.open_requests_secret is None:
        return None
    return OpenRequestKeeper(
        await held.enter_async_context(open_redis(settings.redis_url)),
        records,
        cancels,
        CallerSealer(settings.open_requests_secret.get_secret_value()),
        lease_seconds=settings.front_lease_seconds,
    )


async def _open_streams(
    held: AsyncExitStack, settings: FrontSettings
) -> tuple[CompletionSignalListener | None, DeltaStreamReader | None]:
    if settings.redis_url is None:
        return None, None
    signals = await held.enter_async_context(open_redis(settings.redis_url))
    deltas = await held.enter_async_context(open_redis(settings.redis_url, database=settings.stream_redis_db))
    return CompletionSignalListener(signals), DeltaStreamReader(deltas, on_read=DeltaReadSpans())


def _build_state(
    settings: FrontSettings,
    metrics: FrontMetrics,
    client: HordeClient,
    cancels: Cancels,
    stopping: asyncio.Event,
    listener: CompletionSignalListener | None,
    reader: DeltaStreamReader | None,
) -> FrontState:
    limiter = InflightLimiter(settings.max_inflight, settings.max_inflight_per_source)
    metrics.observe(limiter)
    return FrontState(
        settings=settings,
        metrics=metrics,
        client=client,
        cancels=cancels,
        submitter=Submitter(client, cancels, timeout_seconds=settings.submit_timeout_seconds, observer=metrics),
        limiter=limiter,
        bodies=BodyReader(
            max_bytes=settings.max_body_bytes,
            max_bytes_reading=settings.max_body_bytes_reading,
            timeout_seconds=settings.body_read_timeout_seconds,
            on_received=metrics.body_received,
        ),
        addresses=ClientAddresses(settings.trusted_proxies),
        catalog=ModelCatalog(
            client,
            fresh_seconds=settings.model_cache_seconds,
            stale_seconds=settings.model_stale_seconds,
            call_seconds=settings.call_timeout_seconds,
        ),
        stopping=stopping,
        listener=listener,
        reader=reader,
        redis_alive=lambda: None if listener is None else listener.alive,
    )
