"""The one line that every admitted request logs when it ends (rules LOG)."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from loguru import logger
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from horde.oai.metrics import FrontMetrics
from horde.oai.trace import RequestTrace
from tests.support.clock import FakeClock
from tests.support.front import chat_body, running_front
from tests.support.scripted_horde import MODEL, Answer, generation, status
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from loguru import Record

UP_TO_WAITED = re.compile(
    r"^Chat request (?P<id>\S+) finished: streamed=(?P<streamed>True|False) submitted_at=(?P<submitted>[\d.]+)"
    r" woke_at=(?P<woke>[\d.]+|none) woke_by=(?P<by>\w+) waited=(?P<waited>[\d.]+|none)s",
)


@pytest.fixture
def lines() -> Iterator["list[Record]"]:
    """The finished lines logged during the test."""
    records: list[Record] = []

    def keep(message: object) -> None:
        record: Record = message.record  # type: ignore[attr-defined] # a loguru message
        if "finished:" in record["message"]:
            records.append(record)

    handler = logger.add(keep, level="INFO", format="{message}")
    yield records
    logger.remove(handler)


@pytest.mark.rule(
    "LOG-1", "LOG-2", "LOG-4", "LOG-7", "LOG-8", "LOG-9", "LOG-10", "LOG-11", "LOG-12", "LOG-13", "LOG-14"
)
async def test_a_delivered_request_logs_one_line_of_the_fixed_form(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.play(status("queued"), status("replied"))
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: lines, description="the line")
        request_id = next(iter(front.horde.ids.values()))
    (line,) = lines
    found = UP_TO_WAITED.match(line["message"])
    assert found is not None, line["message"]
    assert (found["id"], found["streamed"], found["by"]) == (request_id, "False", "poll")
    assert line["level"].name == "INFO"
    assert line["message"].endswith(
        " status=200 code=ok wakes=2 estimated_usage=False done_without_generation_reads=0"
        f" requested_model={MODEL} served_model={MODEL} retry_after=none"
        " first_read_wait_time=none first_read_eligible_worker_threads=none"
    )


@pytest.mark.rule("LOG-5", "LOG-15", "LOG-16", "LOG-17", "LOG-18", "LOG-19", "LOG-20", "LOG-21", "LOG-22")
async def test_the_same_values_are_bound_to_the_record(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.play(status("cancelled"), status("replied"))
        await front.client.chat(chat_body(model=None, models=["a", "b"])).json()
        await wait_until(lambda: lines, description="the line")
    extra = lines[0]["extra"]
    assert extra["status_code"] == 200
    assert extra["code"] == "ok"
    assert extra["wake_count"] == 2
    assert extra["estimated_usage"] is False
    assert extra["done_without_generation_reads"] == 1
    assert extra["requested_model"] == "a,b"
    assert extra["served_model"] == MODEL
    assert extra["retry_after"] is None
    assert extra["waited_seconds"] == pytest.approx(extra["woke_at"] - extra["submitted_at"], abs=0.01)


@pytest.mark.rule("LOG-6", "SUB-9")
async def test_a_request_refused_at_submit_has_no_id(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(429, {"message": "slow"}, {"Retry-After": "9"})]
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: lines, description="the line")
    assert lines[0]["message"].startswith("Unsubmitted chat request finished: streamed=False submitted_at=none ")
    assert lines[0]["extra"]["request_id"] is None
    assert (lines[0]["extra"]["status_code"], lines[0]["extra"]["retry_after"]) == (429, 9)


@pytest.mark.rule("LOG-3", "LOG-23", "LOG-24", "LOG-25", "LOG-26", "LOG-27", "RTY-10")
async def test_a_refused_fail_fast_request_logs_the_deciding_read(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.play(status("queued", queue_position=9, wait_time=900, eligible_worker_threads=2))
        await front.client.chat(chat_body(horde={"availability_mode": "fail_fast"})).json()
        await wait_until(lambda: lines, description="the line")
    assert lines[0]["message"].endswith(
        " retry_after=600 queue_reason=wait_exceeds_budget wait_time=900 eligible_worker_threads=2"
        " first_read_wait_time=900 first_read_eligible_worker_threads=2"
    )


@pytest.mark.rule("LOG-26", "LOG-27")
async def test_an_admitted_fail_fast_request_logs_its_first_read(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.play(status("queued", wait_time=1, eligible_worker_threads=2), status("replied"))
        await front.client.chat(chat_body(horde={"availability_mode": "fail_fast"})).json()
        await wait_until(lambda: lines, description="the line")
    assert lines[0]["extra"]["first_read_wait_time"] == 1
    assert lines[0]["extra"]["first_read_eligible_worker_threads"] == 2
    assert "queue_reason" not in lines[0]["extra"]


@pytest.mark.rule("LOG-13", "LOG-15", "LOG-16", "CAN-2")
@pytest.mark.parametrize(("stream", "status_code"), [(False, 499), (True, 200)])
async def test_a_client_that_left_is_logged_as_such(lines: "list[Record]", *, stream: bool, status_code: int) -> None:
    async with running_front() as front:
        front.horde.play(status("queued"))
        exchange = front.client.chat(chat_body(stream=stream))
        if stream:
            await exchange.status()
        await wait_until(lambda: front.horde.of("GET", "/status/"), description="the request to wait")
        await exchange.leave()
        await wait_until(lambda: lines, description="the line")
    extra = lines[0]["extra"]
    assert (extra["code"], extra["status_code"], extra["woke_by"]) == ("client_closed", status_code, "disconnect")
    assert extra["woke_at"] is None


@pytest.mark.rule("LOG-15", "RTY-10")
async def test_a_stream_that_failed_after_its_headers_is_logged_as_200_with_the_code(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.play(status("impossible"))
        await front.client.chat(chat_body(stream=True)).chunks()
        await wait_until(lambda: lines, description="the line")
    extra = lines[0]["extra"]
    assert (extra["status_code"], extra["code"], extra["retry_after"]) == (200, "no_eligible_worker", 30)
    assert extra["woke_by"] is None


async def test_a_models_name_cannot_forge_a_line_and_the_key_is_nowhere(lines: "list[Record]") -> None:
    async with running_front() as front:
        name = "a\nChat request x finished status=500"
        await front.client.chat(chat_body(model=name), headers={"Authorization": "Bearer secret-key"}).json()
        await wait_until(lambda: lines, description="the line")
    assert "\n" not in lines[0]["message"]
    assert "secret-key" not in str(lines[0]["extra"]) + lines[0]["message"]


async def test_what_the_horde_names_cannot_forge_a_line_either(lines: "list[Record]") -> None:
    forged = "m\nChat request x finished: status=500"
    async with running_front() as front:
        front.horde.play(status("replied", generation(model=forged)))
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: lines, description="the line")
    shown = "m?Chat?request?x?finished:?status=500"
    assert f" served_model={shown} retry_after" in lines[0]["message"]
    assert lines[0]["extra"]["served_model"] == shown


def test_a_request_id_cannot_forge_a_line(lines: "list[Record]") -> None:
    trace = RequestTrace(FrontMetrics(), streamed=False, requested_models=(MODEL,), fail_fast=False)
    trace.submitted("id finished: status=500\n")
    trace.finish()
    shown = "id?finished:?status=500?"
    assert lines[0]["message"].startswith(f"Chat request {shown} finished: streamed=False ")
    assert lines[0]["extra"]["request_id"] == shown


async def test_a_refusals_code_cannot_forge_a_line(lines: "list[Record]") -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(403, {"message": "no", "rc": "A\nB code=ok"})]
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: lines, description="the line")
    assert " status=403 code=A?B?code=ok wakes=0 " in lines[0]["message"]


@pytest.mark.rule("MET-19")
def test_a_request_is_measured_from_its_arrival_not_from_its_slot() -> None:
    reader = InMemoryMetricReader()
    metrics = FrontMetrics(MeterProvider(metric_readers=[reader]).get_meter("test"))
    clock = FakeClock(now=100.0)
    for arrived in (70.0, None):
        trace = RequestTrace(
            metrics, streamed=False, requested_models=(MODEL,), fail_fast=False, clock=clock, arrived=arrived
        )
        clock.advance(1)
        trace.finish()
    data = reader.get_metrics_data()
    assert data is not None
    by_name = {metric.name: metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics}
    (point,) = by_name["horde.oai.request.duration"].data.data_points
    assert isinstance(point, HistogramDataPoint)
    assert (point.count, point.min, point.max) == (2, 1.0, 31.0)
