"""What a native Horde counts, and what it exports when its environment names a collector."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator

import aiohttp
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from horde.native.db.engine import create_pool
from horde.native.users import ensure_user
from tests.support.collector import attributes_of, running_collector
from tests.support.native_server import Caller
from tests.support.waiting import wait_until

_KEY = "a-key-that-must-not-be-seen"
_HIDDEN = ("HORDE_", "OTEL_", "PYROSCOPE_", "AI_HORDE_", "DEPLOYMENT_")

type Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@contextlib.asynccontextmanager
async def _horde(database_url: str, **settings: str) -> AsyncIterator[tuple[Caller, str]]:
    """Run the program; yield a caller with kudos and the address of its metrics, and stop it cleanly."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment |= {
            "HORDE_NATIVE_DATABASE_URL": database_url,
            "HORDE_NATIVE_LISTEN_FD": str(listener.fileno()),
            "HORDE_NATIVE_METRICS_PORT": "0",
            **settings,
        }
        program = (sys.executable, "-m", "horde.native")
        process = await asyncio.create_subprocess_exec(
            *program, env=environment, stderr=asyncio.subprocess.PIPE, pass_fds=[listener.fileno()]
        )
    assert process.stderr is not None
    try:
        line = b""
        async with asyncio.timeout(60):
            while b"Metrics for Prometheus" not in line:
                line = await process.stderr.readline()
        endpoint = re.search(rb"http://127\.0\.0\.1:\d+/metrics", line)
        assert endpoint is not None
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                async with session.get(f"{address}/readyz") as response:
                    return response.status == 200

            await wait_until(is_ready, description="the Horde to be ready", seconds=60)
            yield Caller(session, f"{address}/api", _KEY), endpoint[0].decode()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _make_user(database_url: str) -> None:
    pool = await create_pool(database_url)
    try:
        await ensure_user(pool, "a user", _KEY, kudos=1000)
    finally:
        await pool.close()


async def _scrape(endpoint: str) -> Series:
    async with aiohttp.ClientSession() as session, session.get(endpoint) as response:
        text = await response.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _value(series: Series, name: str, **labels: str) -> float:
    wanted = frozenset((f"horde_{label}", value) for label, value in labels.items())
    return series[name, wanted]


async def test_what_happens_to_requests_is_counted(migrated_database_url: str) -> None:
    await _make_user(migrated_database_url)
    async with _horde(migrated_database_url) as (caller, endpoint):
        assert (await caller.pop()).body["id"] is None
        await caller.submit_id()
        cancelled = await caller.submit_id()
        await caller.cancel(cancelled)
        job = await caller.pop_job()
        await caller.reply(job)
        await caller.call("GET", f"/v2/generate/chat/status/{job['id']}")
        series = await _scrape(endpoint)
    assert _value(series, "horde_native_submits_total", outcome="new") == 2
    assert _value(series, "horde_native_pops_total", outcome="empty") == 1
    assert _value(series, "horde_native_pops_total", outcome="job") == 1
    assert _value(series, "horde_native_requests_ended_total", outcome="replied") == 1
    assert _value(series, "horde_native_requests_ended_total", outcome="cancelled") == 1
    assert _value(series, "horde_native_attempts_ended_total", outcome="replied") == 1
    assert _value(series, "horde_native_attempt_duration_seconds_count") == 1
    assert _value(series, "horde_native_kudos_held_total") >= 0, "an idle Horde sets nothing aside"
    assert _value(series, "horde_native_kudos_charged_total") > 0
    assert _value(series, "horde_native_refusals_total", code="RequestNotFound") == 1
    assert _value(series, "horde_native_pops_held") == 0
    status_route = {"method": "GET", "route": "/api/v2/generate/chat/status/{id}", "status_code": "404"}
    assert _value(series, "horde_native_duration_seconds_count", **status_route) == 1


async def test_calls_are_exported_as_spans_named_by_template_without_keys(migrated_database_url: str) -> None:
    await _make_user(migrated_database_url)
    async with running_collector() as collector:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        async with _horde(migrated_database_url, **settings) as (caller, _):
            await caller.come_online()
            request_id = await caller.submit_id()
            await caller.status(request_id)
    servers = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert [span.name for span in servers] == [
        "POST /api/v2/generate/text/pop",
        "POST /api/v2/generate/chat",
        "GET /api/v2/generate/chat/status/{id}",
    ]
    assert {resource["service.name"] for resource in collector.resources} == {"horde-native"}
    assert request_id not in str([attributes_of(span.attributes) for span in servers])
    assert _KEY.encode() not in b"".join(collector.raw)
