"""Metrics for a Prometheus that scrapes, on a listener of their own: for people without a collector.

Imported only when a port is set. The exposition is made in a thread, so that a scrape of many series delays no stream.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Final

from aiohttp import web
from loguru import logger
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from prometheus_client import REGISTRY, exposition

__all__ = ["new_reader", "record_metrics_alone", "serving_metrics"]


def new_reader() -> PrometheusMetricReader:
    """Return the reader behind the endpoint; the process's meter provider has to get it."""
    return PrometheusMetricReader(scope_info_enabled=False)


def record_metrics_alone(service: str, version: str, views: Sequence[View], readers: Sequence[MetricReader]) -> None:
    """Set a meter provider up that sends nothing anywhere.

    Args:
        service: Name of the service, unless ``OTEL_SERVICE_NAME`` says another.
        version: Version of the service.
        views: Boundaries of the histograms.
        readers: What reads the metrics.
    """
    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or service, "service.version": version}
    set_meter_provider(MeterProvider(readers, Resource.create(named), views=views))


_SCRAPE_LOCK: Final = web.AppKey("scrape_lock", asyncio.Lock)


async def _expose(request: web.Request) -> web.Response:
    encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
    async with request.app[_SCRAPE_LOCK]:  # the reader keeps what it collected for the scrape under way
        body = await asyncio.to_thread(encode, REGISTRY)
    response = web.Response(body=body, headers={"Content-Type": content_type})
    response.enable_compression()
    return response


@contextlib.asynccontextmanager
async def serving_metrics(listener: socket.socket) -> AsyncIterator[None]:
    """Answer ``GET /metrics`` for as long as the context is open.

    Args:
        listener: A bound socket, closed at the end.
    """
    app = web.Application()
    app[_SCRAPE_LOCK] = asyncio.Lock()
    app.router.add_get("/metrics", _expose)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        host, port = listener.getsockname()[:2]
        logger.info("Metrics for Prometheus are on http://{}:{}/metrics", host, port)
        yield
    finally:
        await runner.cleanup()
