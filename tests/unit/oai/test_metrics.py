"""Every instrument with exactly its attributes (rules MET)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from horde.metrics import BUCKETS_REQUEST_LIFECYCLE_SECONDS, BUCKETS_SECONDS
from horde.oai.metrics import BUCKETS_BODY_BYTES, histogram_views
from tests.support.front import Front, chat_body, running_front
from tests.support.scripted_horde import MODEL, Answer, generation, status
from tests.support.waiting import wait_until


class Readings:
    """The instruments of one front, read on demand."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return attributes and data point of each series of an instrument, keys without their prefix."""
        data = self._reader.get_metrics_data()
        metrics = (
            [
                metric
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            ]
            if data
            else []
        )
        found: list[tuple[dict[str, Any], Any]] = []
        for metric in metrics:
            if metric.name != name:
                continue
            for point in metric.data.data_points:
                attributes = dict(point.attributes or {})
                assert all(key.startswith("horde.") for key in attributes), attributes
                found.append(({key.removeprefix("horde."): value for key, value in attributes.items()}, point))
        return found

    def counts(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return attributes and value, or count of a histogram, of what was counted."""
        values = [
            (attributes, point.count if isinstance(point, HistogramDataPoint) else point.value)
            for attributes, point in self.points(name)
        ]
        return [(attributes, value) for attributes, value in values if value]


@asynccontextmanager
async def measured(**settings: Any) -> AsyncIterator[tuple[Front, Readings]]:
    """A front with a meter of its own."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=histogram_views())
    async with running_front(meter=provider.get_meter("test"), **settings) as front:
        yield front, Readings(reader)
    provider.shutdown()


@pytest.mark.rule(
    "MET-1", "MET-5", "MET-13", "MET-14", "MET-15", "MET-17", "MET-18", "MET-19", "MET-20", "MET-27", "TEL-16"
)
async def test_a_delivered_request_is_measured_from_body_to_end() -> None:
    async with measured() as (front, readings):
        front.horde.play(status("queued"), status("replied"))
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: readings.counts("horde.oai.request.duration"), description="the end")
        assert readings.counts("horde.oai.requests.admitted") == [({"streamed": False}, 1)]
        assert readings.counts("horde.oai.request.body_bytes") == [({}, 1)]
        assert sorted(readings.counts("horde.oai.native.duration"), key=str) == [
            ({"call_type": "status", "outcome": "ok"}, 2),
            ({"call_type": "submit", "outcome": "ok"}, 1),
        ]
        assert readings.counts("horde.oai.queue_wait") == [({"model": MODEL}, 1)]
        assert readings.counts("horde.oai.first_content.duration") == [({"streamed": False, "relayed": False}, 1)]
        assert readings.counts("horde.oai.request.duration") == [
            ({"streamed": False, "status_code": 200, "code": "ok"}, 1)
        ]
        assert readings.counts("horde.oai.completions") == [({"model": MODEL, "estimated_usage": False}, 1)]
        assert readings.counts("horde.oai.completions.empty") == []


@pytest.mark.rule("MET-21", "MET-22", "MET-23")
async def test_each_status_read_is_counted_by_its_cause_and_finding() -> None:
    async with measured() as (front, readings):
        front.horde.play(status("cancelled"), status("replied"))
        await front.client.chat(chat_body()).json()
        found = {attributes["wake_source"]: attributes for attributes, _ in readings.counts("horde.oai.wakes")}
    assert found == {
        "immediate": {
            "wake_source": "immediate", "found_finished": False, "found_done_without_generation": True,
        },
        "recheck": {
            "wake_source": "recheck", "found_finished": True, "found_done_without_generation": False,
        },
    }  # fmt: skip


@pytest.mark.rule("MET-6", "AUT-4", "ADM-6")
async def test_refusals_before_a_slot_are_counted_by_status_and_code() -> None:
    async with measured(max_body_bytes=2000) as (front, readings):
        await front.client.chat(chat_body(n=0)).json()
        await front.client.chat(chat_body(model="a:b")).json()
        await front.client.chat(chat_body(), headers={"Authorization": "x"}).json()
        await front.client.chat(chat_body(user="x" * 3000)).json()
        assert sorted(readings.counts("horde.oai.requests.refused"), key=str) == [
            ({"status_code": 400, "code": "UnsupportedChatParameter"}, 1),
            ({"status_code": 401, "code": "InvalidAuthorizationHeader"}, 1),
            ({"status_code": 404, "code": "model_not_found"}, 1),
            ({"status_code": 413, "code": "RequestTooLarge"}, 1),
        ]
        assert readings.counts("horde.oai.request.body_bytes") == [({}, 2)]
        assert readings.counts("horde.oai.requests.admitted") == []


@pytest.mark.rule("MET-7", "MET-8", "MET-16")
async def test_admitted_requests_that_end_in_an_error_status_are_counted_with_their_reason() -> None:
    async with measured() as (front, readings):
        front.horde.play(status("queued", eligible_worker_threads=0))
        await front.client.chat(chat_body(horde={"availability_mode": "fail_fast"})).json()
        front.horde.submits = [Answer(429, {"message": "slow down"})]
        await front.client.chat(chat_body(stream=True)).json()
        assert sorted(readings.counts("horde.oai.requests.errors"), key=str) == [
            ({"status_code": 429, "code": "rate_limit_exceeded", "streamed": True, "reason": ""}, 1),
            ({"status_code": 503, "code": "queue_unavailable", "streamed": False, "reason": "no_eligible_threads"}, 1),
        ]
        outcomes = {(a["call_type"], a["outcome"]) for a, _ in readings.counts("horde.oai.native.duration")}
        assert ("submit", "refused") in outcomes


@pytest.mark.rule("MET-9", "MET-20")
async def test_a_stream_that_ends_in_an_error_event_counts_as_a_stream_failure_with_200() -> None:
    async with measured() as (front, readings):
        front.horde.play(status("queued"), status("faulted"))
        await front.client.chat(chat_body(stream=True)).chunks()
        await wait_until(lambda: readings.counts("horde.oai.request.duration"), description="the end")
        assert readings.counts("horde.oai.stream.failures") == [({"code": "ChatRequestFaulted"}, 1)]
        assert readings.counts("horde.oai.requests.errors") == []
        assert readings.counts("horde.oai.request.duration") == [
            ({"streamed": True, "status_code": 200, "code": "ChatRequestFaulted"}, 1)
        ]


@pytest.mark.rule("MET-10", "MET-11", "MET-12", "ADM-7")
async def test_the_gauges_read_the_limiter() -> None:
    async with measured(trusted_proxies=("127.0.0.1",)) as (front, readings):
        front.horde.play(status("queued"))
        for address in ("203.0.113.1", "203.0.113.1", "203.0.113.2"):
            front.client.chat(chat_body(), headers={"X-Forwarded-For": address})
        await wait_until(lambda: front.state.limiter.in_use == 3, description="three slots")
        assert readings.counts("horde.oai.inflight") == [({}, 3)]
        assert readings.counts("horde.oai.inflight.sources") == [({}, 2)]
        assert readings.counts("horde.oai.inflight.source_max") == [({}, 2)]


@pytest.mark.rule("MET-24", "MET-25", "SUB-3")
async def test_recoveries_and_unknown_outcomes_are_counted() -> None:
    async with measured() as (front, readings):
        front.horde.submits = [Answer(drop=True), None, Answer(drop=True)]
        await front.client.chat(chat_body()).json()
        front.horde.operation_cancels = [Answer(drop=True)]
        await front.client.chat(chat_body()).json()
        assert readings.counts("horde.oai.submit.recoveries") == [({"existing_claim": False}, 1)]
        assert readings.counts("horde.oai.submit.outcome_unknown") == [({}, 1)]
        outcomes = {(a["call_type"], a["outcome"]) for a, _ in readings.counts("horde.oai.native.duration")}
        assert {("submit", "unreachable"), ("recovery", "ok")} <= outcomes


@pytest.mark.rule("MET-26", "RTY-12")
async def test_a_clients_retry_is_counted_and_not_acted_on() -> None:
    async with measured() as (front, readings):
        for count in ("0", "2"):
            assert await front.client.chat(chat_body(), headers={"x-stainless-retry-count": count}).status() == 200
        assert readings.counts("horde.oai.client_retry_hints") == [({}, 1)]


@pytest.mark.rule("MET-27", "MET-28", "MET-3")
async def test_empty_and_estimated_completions_are_counted_by_the_served_model() -> None:
    async with measured() as (front, readings):
        front.horde.play(status("replied", generation("", completion_tokens=None, model="served")))
        await front.client.chat(chat_body()).json()
        assert readings.counts("horde.oai.completions") == [({"model": "served", "estimated_usage": True}, 1)]
        assert readings.counts("horde.oai.completions.empty") == [({"model": "served"}, 1)]


@pytest.mark.rule("MET-32", "MET-33")
async def test_each_cancel_attempt_is_counted_by_its_outcome() -> None:
    async with measured() as (front, readings):
        front.horde.play(status("impossible"))
        front.horde.cancels = [
            Answer(500, {"message": "no"}),
            Answer(404, {"message": "gone", "rc": "RequestNotFound"}),
        ]
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: len(front.horde.cancelled) == 2, description="the retry")
        await wait_until(lambda: front.state.cancels.failed_count == 0, description="nothing left")
        assert sorted(readings.counts("horde.oai.cancels"), key=str) == [
            ({"outcome": "already_gone"}, 1),
            ({"outcome": "failed"}, 1),
        ]


@pytest.mark.rule("MET-2", "MET-4", "ATT-5")
async def test_no_attribute_holds_a_key_a_title_an_address_or_an_id() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with running_front(meter=provider.get_meter("test")) as front:
        headers = {"Authorization": "Bearer secret-key", "X-Title": "secret title"}
        await front.client.chat(chat_body(), headers=headers).json()
        request_id = next(iter(front.horde.ids.values()))
        data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    text = data.to_json()
    assert not any(secret in text for secret in ("secret", request_id, "127.0.0.1"))


@pytest.mark.rule("MET-35", "TEL-5")
async def test_the_histograms_have_their_boundaries() -> None:
    async with measured() as (front, readings):
        await front.client.chat(chat_body()).json()
        await wait_until(lambda: readings.counts("horde.oai.request.duration"), description="the end")
        bounds = {
            name: tuple(readings.points(name)[0][1].explicit_bounds)
            for name in ("horde.oai.native.duration", "horde.oai.request.duration", "horde.oai.request.body_bytes")
        }
    assert bounds == {
        "horde.oai.native.duration": BUCKETS_SECONDS,
        "horde.oai.request.duration": BUCKETS_REQUEST_LIFECYCLE_SECONDS,
        "horde.oai.request.body_bytes": BUCKETS_BODY_BYTES,
    }


@pytest.mark.rule("MET-24", "MET-25", "MET-30", "MET-32")
async def test_rare_counters_begin_at_0_so_that_a_rate_sees_their_first_increase() -> None:
    async with measured() as (_, readings):
        for name, series in {"submit.outcome_unknown": 1, "submit.recoveries": 2, "cancels": 5}.items():
            points = readings.points(f"horde.oai.{name}")
            assert [point.value for _, point in points] == [0] * series
