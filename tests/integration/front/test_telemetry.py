"""What a front whose environment names a collector sends there, and what it costs when the collector is bad."""

import asyncio
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from redis.asyncio import Redis

from horde.metrics import BUCKETS_REQUEST_LIFECYCLE_SECONDS, BUCKETS_SECONDS
from horde.oai.metrics import BUCKETS_BODY_BYTES
from tests.support.collector import Collector, attributes_of, running_collector
from tests.support.front import chat_body
from tests.support.front_program import plain_environment, running_front, stop_front, wait_alive
from tests.support.horde_streams import HordeStreams
from tests.support.scripted_horde import Answer, Call, ScriptedHorde, scripted_horde, status
from tests.support.waiting import wait_until

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = "b7ad6b7169203331"
_KEY = "a-key-that-must-not-be-seen"
_PROMPT = "a prompt that must not be seen"
_AGENT = "an-agent-that-must-not-be-seen"
_HEADERS = {"traceparent": f"00-{_TRACE}-{_PARENT}-01", "Authorization": f"Bearer {_KEY}", "User-Agent": _AGENT}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a front did and sent: one plain request, one stream, a list of models, probes.

    Attributes:
        collector: What it exported.
        calls: What it called the Horde with.
        errors: What it wrote to standard error.
        stream_seconds: How long the stream took, as its client saw it.
    """

    collector: Collector
    calls: list[Call]
    errors: str
    stream_seconds: float


async def _chat(session: aiohttp.ClientSession, address: str, *, stream: bool) -> bytes:
    body = chat_body(stream=stream, messages=[{"role": "user", "content": _PROMPT}])
    async with session.post(f"{address}/v1/chat/completions", json=body, headers=_HEADERS) as response:
        assert response.status == 200
        return await response.read()


async def _use(horde: ScriptedHorde, collector: Collector, **settings: str) -> Recorded:
    async with running_front(horde.url, **settings) as (process, address), aiohttp.ClientSession() as session:
        await wait_alive(session, address)
        await _chat(session, address, stream=False)
        horde.restart([Answer(body=status("processing")), Answer(body=status("replied"))])
        started = time.monotonic()
        await _chat(session, address, stream=True)
        stream_seconds = time.monotonic() - started
        async with session.get(f"{address}/v1/models?secret={_KEY}", headers=_HEADERS) as response:
            assert response.status == 200
        errors = await stop_front(process)
    return Recorded(collector, horde.calls, errors, stream_seconds)


async def _record(**settings: str) -> Recorded:
    async with running_collector() as collector, scripted_horde() as horde:
        return await _use(horde, collector, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **settings)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """One life of a front under telemetry, with an operator who would have every header recorded."""
    captured = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS"
    return asyncio.run(
        _record(
            DEPLOYMENT_ENVIRONMENT="a-test",
            **{f"{captured}_SERVER_REQUEST": ".*", f"{captured}_CLIENT_REQUEST": ".*"},
        )
    )


def _client_spans(recorded: Recorded) -> list[Span]:
    return [span for span in recorded.collector.spans if span.kind == Span.SPAN_KIND_CLIENT]


@pytest.mark.rule("TEL-1", "TEL-2", "TEL-4")
def test_everything_sent_names_the_service_and_its_environment(recorded: Recorded) -> None:
    assert recorded.collector.resources
    for resource in recorded.collector.resources:
        assert resource["service.name"] == "horde-oai"
        assert resource["deployment.environment.name"] == "a-test"


@pytest.mark.rule("TEL-11", "TEL-12", "TEL-13")
def test_chat_requests_and_the_list_of_models_get_server_spans_and_probes_none(recorded: Recorded) -> None:
    names = [span.name for span in recorded.collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert sorted(names) == ["GET /v1/models", "POST /v1/chat/completions", "POST /v1/chat/completions"]


@pytest.mark.rule("TEL-7")
def test_a_trace_goes_from_the_client_through_the_front_to_the_horde(recorded: Recorded) -> None:
    servers = recorded.collector.spans_named("POST /v1/chat/completions")
    assert {span.trace_id.hex() for span in servers} == {_TRACE}
    assert {span.parent_span_id.hex() for span in servers} == {_PARENT}
    submits = [call for call in recorded.calls if call.path.endswith("/generate/chat")]
    assert len(submits) == 2
    clients = {span.span_id.hex(): span for span in _client_spans(recorded)}
    for call in submits:
        _, trace_id, span_id, _ = call.headers["traceparent"].split("-")
        assert trace_id == _TRACE
        assert clients[span_id].parent_span_id in {span.span_id for span in servers}


@pytest.mark.rule("TEL-15")
def test_the_span_of_a_stream_lasts_as_long_as_the_stream(recorded: Recorded) -> None:
    spans = recorded.collector.spans_named("POST /v1/chat/completions")
    stream = max(spans, key=lambda span: span.start_time_unix_nano)
    reads = [span for span in _client_spans(recorded) if span.parent_span_id == stream.span_id]
    assert len(reads) == 3, "a submit and two status reads"
    assert stream.end_time_unix_nano >= max(span.end_time_unix_nano for span in reads)
    assert (stream.end_time_unix_nano - stream.start_time_unix_nano) / 1e9 <= recorded.stream_seconds


@pytest.mark.rule("TEL-14", "MET-4")
def test_nothing_sent_holds_a_key_a_prompt_an_agent_or_a_clients_address(recorded: Recorded) -> None:
    sent = b"".join(recorded.collector.raw)
    for secret in (_KEY, _PROMPT, _AGENT):
        assert secret.encode() not in sent
    for span in recorded.collector.spans:
        addressed = {"net.peer.ip", "net.peer.port", "client.address", "client.port", "http.client_ip"}
        assert not addressed & attributes_of(span.attributes).keys()
        assert not [name for name in attributes_of(span.attributes) if ".header." in name]


@pytest.mark.rule("TEL-6", "LOG-5")
def test_the_line_of_a_finished_request_is_exported_with_its_values_and_its_trace(recorded: Recorded) -> None:
    lines = [record for record in recorded.collector.logs if record.body.string_value.startswith("Chat request ")]
    assert len(lines) == 2
    servers = {span.span_id for span in recorded.collector.spans_named("POST /v1/chat/completions")}
    for line in lines:
        values = attributes_of(line.attributes)
        assert values["code"] == "ok"
        assert values["status_code"] == 200
        assert f"Chat request {values['request_id']} finished:" in line.body.string_value
        assert line.trace_id.hex() == _TRACE
        assert line.span_id in servers


@pytest.mark.rule("TEL-5", "MET-35")
def test_the_histograms_are_exported_with_their_boundaries(recorded: Recorded) -> None:
    expected = {
        "horde.oai.native.duration": BUCKETS_SECONDS,
        "horde.oai.request.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
        "horde.oai.request.body_bytes": BUCKETS_BODY_BYTES,
    }
    for name, boundaries in expected.items():
        points = recorded.collector.metric(name).histogram.data_points
        assert points
        assert all(tuple(point.explicit_bounds) == boundaries for point in points)


@pytest.mark.rule("MET-2", "MET-5")
def test_a_counter_is_exported_with_its_attributes_and_no_other(recorded: Recorded) -> None:
    points = recorded.collector.metric("horde.oai.requests.admitted").sum.data_points
    assert {tuple(attributes_of(point.attributes).items()) for point in points} == {
        (("horde.streamed", False),),
        (("horde.streamed", True),),
    }


@pytest.mark.rule("TEL-2", "SET-13")
@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER_ARG"])
async def test_a_disabled_sdk_sends_nothing_and_a_sampling_rate_of_0_no_trace(variable: str) -> None:
    value = {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_SAMPLER_ARG": "0"}[variable]
    async with running_collector() as collector, scripted_horde() as horde:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, variable: value}
        async with running_front(horde.url, **settings) as (process, address), aiohttp.ClientSession() as session:
            await wait_alive(session, address)
            async with session.get(f"{address}/v1/models") as response:
                assert response.status == 200
            await stop_front(process)
    assert collector.spans == []
    assert bool(collector.metrics) is (variable != "OTEL_SDK_DISABLED")


@pytest.mark.rule("TEL-3", "TEL-4", "SET-13")
async def test_the_shared_variables_name_the_service_and_its_resource() -> None:
    async with running_collector() as collector, scripted_horde() as horde:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_SERVICE_NAME": "another-name",
            "OTEL_RESOURCE_ATTRIBUTES": "region=north",
        }
        async with running_front(horde.url, **settings) as (process, address), aiohttp.ClientSession() as session:
            await wait_alive(session, address)
            await stop_front(process)
    assert collector.resources
    assert {(found["service.name"], found["region"]) for found in collector.resources} == {("another-name", "north")}


async def test_a_collector_that_never_answers_delays_no_request_and_bounds_the_exit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        async with (
            scripted_horde() as horde,
            running_front(horde.url, **settings) as (process, address),
            aiohttp.ClientSession() as session,
        ):
            await wait_alive(session, address)
            async with asyncio.timeout(60):
                for _ in range(20):
                    await _chat(session, address, stream=False)
            # The SDK alone would wait ten seconds for each of its exporters.
            errors = await stop_front(process)
    assert "did not take the last telemetry in time" in errors


@pytest.mark.rule("TEL-9", "TEL-10", "SET-13")
async def test_profiles_are_sent_also_when_the_sdk_is_disabled() -> None:
    async with running_collector() as collector, scripted_horde() as horde:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_SDK_DISABLED": "true",
            "PYROSCOPE_ENABLED": "true",
            "PYROSCOPE_SERVER_ADDRESS": collector.url,
            "PYROSCOPE_TENANT_ID": "a-tenant",
        }
        async with running_front(horde.url, **settings) as (process, address), aiohttp.ClientSession() as session:
            await wait_alive(session, address)
            await stop_front(process)
    assert {profile.tenant for profile in collector.profiles} == {"a-tenant"}
    assert all(b"horde-oai" in profile.body for profile in collector.profiles)
    assert collector.spans == []


@pytest.mark.rule("SPN-1", "SPN-2", "SPN-3", "SPN-6")
async def test_reads_of_live_text_are_exported_as_roots(redis_url: str) -> None:
    async with running_collector() as collector, scripted_horde() as horde:
        horde.statuses = [Answer(body=status("processing"))]
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "HORDE_OAI_REDIS_URL": redis_url}
        async with (
            running_front(horde.url, **settings) as (process, address),
            aiohttp.ClientSession() as session,
            Redis.from_url(redis_url) as redis,
        ):
            await wait_alive(session, address)
            body = chat_body(stream=True)
            async with session.post(f"{address}/v1/chat/completions", json=body, headers=_HEADERS) as response:
                await wait_until(lambda: bool(horde.ids), description="the submit")
                await HordeStreams(redis).post(next(iter(horde.ids.values())), 1, "Hello there.")
                await response.content.readuntil(b"Hello")
                horde.restart([Answer(body=status("replied"))])
                assert b"[DONE]" in await response.content.read()
            await stop_front(process)
    reads = collector.spans_named("horde.oai.delta_read")
    assert [attributes_of(span.attributes)["horde.entry_count"] for span in reads] == [1]
    assert [span.parent_span_id for span in reads] == [b""]


@pytest.mark.rule("TEL-2", "TEL-8")
async def test_a_front_without_telemetry_loads_nothing_of_it() -> None:
    code = (
        "import sys; from horde.oai.__main__ import configure_telemetry; exports = configure_telemetry();"
        "import horde.oai.app; unwanted = ('logfire', 'opentelemetry.exporter', 'opentelemetry.instrumentation',"
        "'pyroscope', 'flask', 'prometheus_client', 'horde.telemetry_export', 'horde.oai.instrumentation');"
        "print(exports, [name for name in sys.modules if name.startswith(unwanted)])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=plain_environment(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        told, _ = await process.communicate()
    assert told == b"False []\n"


async def test_a_collector_that_is_away_is_told_of_in_the_log_and_never_by_a_traceback() -> None:
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BLRP_MAX_QUEUE_SIZE": "4"}
    async with (
        scripted_horde() as horde,
        running_front(horde.url, OTEL_BLRP_MAX_EXPORT_BATCH_SIZE="2", HORDE_OAI_LOG_LEVEL="DEBUG", **settings) as front,
        aiohttp.ClientSession() as session,
    ):
        process, address = front
        await wait_alive(session, address)
        for _ in range(20):
            await _chat(session, address, stream=False)
        errors = await stop_front(process)
    assert errors.count("Chat request ") == 20
    assert "Traceback" not in errors
    assert "Logging error" not in errors


def test_a_record_of_the_standard_library_is_logged_at_the_place_that_logged_it() -> None:
    code = (
        "import logging; from loguru import logger; from horde.telemetry import configure_logging;"
        "configure_logging('x'); names = []; logger.add(lambda message: names.append(message.record['name']));"
        "call = compile('log.warning(1)', 'caller.py', 'exec');"
        "exec(call, {'log': logging.getLogger('a'), '__name__': 'd'}); print(names)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "['d']\n"
