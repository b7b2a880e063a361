"""The front's metrics as a Prometheus scrapes them."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from horde.metrics import BUCKETS_SECONDS
from tests.support.collector import running_collector
from tests.support.front import chat_body
from tests.support.front_program import running_front, stop_front, wait_alive
from tests.support.scripted_horde import scripted_horde

type Scrape = dict[str, Metric]


async def scrape(session: aiohttp.ClientSession, url: str) -> Scrape:
    async with session.get(url) as response:
        assert response.status == 200
        return {family.name: family for family in text_string_to_metric_families(await response.text())}


@contextlib.asynccontextmanager
async def scraped_front(**settings: str) -> AsyncIterator[tuple[aiohttp.ClientSession, str, str]]:
    """Run a front with an endpoint on a free port; yield a session, the front's address and the endpoint's."""
    async with (
        scripted_horde() as horde,
        running_front(horde.url, HORDE_OAI_METRICS_PORT="0", **settings) as (process, address),
        aiohttp.ClientSession() as session,
    ):
        assert process.stderr is not None
        line = b""
        async with asyncio.timeout(60):
            while b"Metrics for Prometheus" not in line:
                line = await process.stderr.readline()
        found = re.search(rb"http://127\.0\.0\.1:\d+/metrics", line)
        assert found is not None
        await wait_alive(session, address)
        async with session.post(f"{address}/v1/chat/completions", json=chat_body(stream=False)) as response:
            assert response.status == 200
        yield session, address, found[0].decode()
        await stop_front(process)


@pytest.mark.rule("MET-5", "MET-35")
async def test_every_metric_is_scraped_without_any_export() -> None:
    async with scraped_front() as (session, _, endpoint):
        found = await scrape(session, endpoint)
    admitted = found["horde_oai_requests_admitted"].samples
    assert [(sample.labels, sample.value) for sample in admitted] == [({"horde_streamed": "false"}, 1.0)]
    buckets = [
        float(sample.labels["le"])
        for sample in found["horde_oai_native_duration_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["horde_call_type"] == "submit"
    ]
    assert tuple(buckets) == (*BUCKETS_SECONDS, float("inf"))
    assert found["target_info"].samples[0].labels["service_name"] == "horde-oai"


async def test_it_is_scraped_beside_an_export() -> None:
    async with running_collector() as collector:
        async with scraped_front(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as (session, _, endpoint):
            found = await scrape(session, endpoint)
            assert found["horde_oai_requests_admitted"].samples[0].value == 1.0
        assert collector.metric("horde.oai.requests.admitted").sum.data_points[0].as_int == 1


async def test_it_has_a_listener_of_its_own_and_scrapes_at_once_agree() -> None:
    async with scraped_front() as (session, address, endpoint):
        async with session.get(f"{address}/metrics") as response:
            assert response.status == 404
        for found in await asyncio.gather(*(scrape(session, endpoint) for _ in range(8))):
            assert found["horde_oai_completions"].samples[0].value == 1.0


async def test_a_port_in_use_is_a_clear_error_at_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with running_front("http://127.0.0.1:9/api", HORDE_OAI_METRICS_PORT=port) as (process, _):
            async with asyncio.timeout(60):
                _, errors = await process.communicate()
    assert process.returncode == 3
    assert f"Port {port} on 127.0.0.1 is in use" in errors.decode()
