"""What a worker exports when its environment names a collector."""

import asyncio
import os
import signal
import sys

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.collector import attributes_of, running_collector
from tests.support.scripted_model import Finish, Say, ScriptedModel
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
