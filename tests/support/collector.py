"""A collector of OTLP/HTTP and of profiles that keeps what a program sends it, for tests to read."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Collector", "Profile", "attributes_of", "running_collector"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One push of profiles: the tenant named, and the body."""

    tenant: str
    body: bytes


@dataclass(slots=True)
class Collector:
    """What came in.

    Attributes:
        url: For ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        spans: In the order of their arrival.
        metrics: The same; cumulative points come once an export.
        logs: The same.
        resources: Attributes of each export's resource.
        profiles: Pushes in Pyroscope's protocol.
        raw: Every body, decompressed.
    """

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    logs: list[LogRecord] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    async def take_spans(self, request: web.Request) -> web.Response:
        """Keep an export of traces."""
        export = ExportTraceServiceRequest.FromString(await self._body(request))
        for resource in export.resource_spans:
            self.resources.append(attributes_of(resource.resource.attributes))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response()

    async def take_metrics(self, request: web.Request) -> web.Response:
        """Keep an export of metrics."""
        export = ExportMetricsServiceRequest.FromString(await self._body(request))
        for resource in export.resource_metrics:
            self.resources.append(attributes_of(resource.resource.attributes))
            self.metrics += [metric for scope in resource.scope_metrics for metric in scope.metrics]
        return web.Response()

    async def take_logs(self, request: web.Request) -> web.Response:
        """Keep an export of logs."""
        export = ExportLogsServiceRequest.FromString(await self._body(request))
        for resource in export.resource_logs:
            self.resources.append(attributes_of(resource.resource.attributes))
            self.logs += [record for scope in resource.scope_logs for record in scope.log_records]
        return web.Response()

    async def take_profiles(self, request: web.Request) -> web.Response:
        """Keep a push of profiles."""
        self.profiles.append(Profile(request.headers.get("X-Scope-OrgID", ""), await self._body(request)))
        return web.Response()

    async def _body(self, request: web.Request) -> bytes:
        body = await request.read()
        if body.startswith(b"\x1f\x8b"):
            body = gzip.decompress(body)
        self.raw.append(body)
        return body

    def spans_named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    def metric(self, name: str) -> Metric:
        """Return the latest export of a metric."""
        return next(metric for metric in reversed(self.metrics) if metric.name == name)


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind is not None else None


def attributes_of(attributes: Any) -> dict[str, Any]:
    """Return a repeated ``KeyValue`` field as a dictionary."""
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _plain(pair.value) for pair in pairs}


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    """Listen on a free port of the loopback address."""
    collector = Collector()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/traces", collector.take_spans)
    app.router.add_post("/v1/metrics", collector.take_metrics)
    app.router.add_post("/v1/logs", collector.take_logs)
    app.router.add_post("/push.v1.PusherService/Push", collector.take_profiles)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    collector.url = f"http://{host}:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()
