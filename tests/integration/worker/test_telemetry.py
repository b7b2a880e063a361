"""What a worker exports when its environment names a collector, and what a Prometheus scrapes."""

import asyncio
import os
import signal
import sys

import aiohttp
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from tests.support.collector import attributes_of, running_collector
from tests.support.programs import ended, program
from tests.support.scripted_model import Cut, Finish, Say, ScriptedModel, Stall
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil


async def test_its_calls_and_its_log_are_exported_without_its_key(
    horde: Served[ScriptedPops], model: Served[ScriptedModel], wait_until: WaitUntil
) -> None:
    model.server.play([Say("The sea"), Finish()])
    horde.server.give(chat_job(model="scripted-1B"))
    async with running_collector() as collector:
        variables = {
            "HORDE_WORKER_HORDE_URL": horde.url,
            "HORDE_WORKER_BACKEND_URL": model.url,
            "HORDE_WORKER_API_KEY": "secret-worker-key",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "horde.worker", env={**os.environ, **variables}, stderr=asyncio.subprocess.PIPE
        )
        try:
            await wait_until(lambda: horde.server.submits, description="a reply", seconds=60)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                _, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
    assert {resource["service.name"] for resource in collector.resources} == {"horde-worker"}
    called = {str(attributes_of(span.attributes)["http.url"]) for span in collector.spans}
    assert {span.kind for span in collector.spans} == {Span.SPAN_KIND_CLIENT}
    assert any(url.endswith("/v2/generate/text/submit") for url in called)
    assert collector.logs
    assert b"secret-worker-key" not in b"".join(collector.raw)


async def test_what_happens_to_jobs_is_counted_for_who_scrapes(
    horde: Served[ScriptedPops], model: Served[ScriptedModel], wait_until: WaitUntil
) -> None:
    stall = asyncio.Event()
    model.server.play([Say("The"), Say(" sea"), Finish()], [Say("The"), Cut()], [Say("The"), Stall(stall)])
    horde.server.give(*(chat_job(model="scripted-1B", stream_progress=True) for _ in range(3)))
    variables = {
        "HORDE_WORKER_HORDE_URL": horde.url,
        "HORDE_WORKER_BACKEND_URL": model.url,
        "HORDE_WORKER_API_KEY": "secret-worker-key",
        "HORDE_WORKER_METRICS_PORT": "0",
        "HORDE_WORKER_THREADS": "1",
    }
    async with program("horde.worker", **variables) as process:
        assert process.stdout is not None
        line = b""
        async with asyncio.timeout(60):
            while b"Metrics for Prometheus" not in line:
                line = await process.stdout.readline()
        endpoint = line.partition(b" are on ")[2].partition(b'"')[0].decode()
        await wait_until(
            lambda: len(horde.server.submits) == 2 and model.server.open_streams,
            description="the third job",
            seconds=60,
        )
        series = await scrape(endpoint)
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: horde.server.pops[-1]["chat_jobs"] is False, description="the worker to withdraw")
        stall.set()
        code, output = await ended(process)
    assert code == 0, output

    def value(name: str, **labels: str) -> float:
        return series[f"horde_worker_{name}", frozenset((f"horde_{key}", each) for key, each in labels.items())]

    assert value("jobs_ended_total", worker="worker", outcome="taken", reason="") == 1
    assert value("jobs_ended_total", worker="worker", outcome="faulted", reason="generation_error") == 1
    assert value("job_duration_seconds_count", worker="worker", outcome="taken") == 1
    assert value("first_text_duration_seconds_count", worker="worker") == 3
    assert value("reply_tokens_total", worker="worker") == Finish().completion_tokens
    assert value("prompt_tokens_total", worker="worker") == Finish().prompt_tokens
    assert value("kudos_total", worker="worker") == 1.5
    assert value("pops_total", worker="worker", outcome="job") == 3
    assert value("jobs_running", worker="worker") == 1
    assert value("threads", worker="worker") == 1
    assert value("state", worker="worker", state="serving") == 1
    assert value("state", worker="worker", state="away") == 0
    assert value("progress_duration_seconds_count", worker="worker", outcome="accepted") >= 1


async def scrape(endpoint: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with aiohttp.ClientSession() as session, session.get(endpoint) as response:
        text = await response.text()
    assert "secret-worker-key" not in text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_metrics_port_in_use_is_a_sentence_and_exit_code_3(
    horde: Served[ScriptedPops], model: Served[ScriptedModel]
) -> None:
    variables = {
        "HORDE_WORKER_BACKEND_URL": model.url,
        "HORDE_WORKER_API_KEY": "k",
        "HORDE_WORKER_METRICS_PORT": horde.url.rpartition(":")[2],
    }
    async with program("horde.worker", **variables) as process:
        code, output = await ended(process)
    assert code == 3
    assert "is in use by another program" in output
