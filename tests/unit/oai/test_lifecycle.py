"""The life of a request: capacity, waiting, deadlines, lost answers, clients that leave, shutdown."""

import asyncio

import pytest

from tests.support.front import Front, chat_body, running_front
from tests.support.scripted_horde import Answer, status
from tests.support.waiting import wait_until


async def nothing_is_held(front: Front) -> None:
    """Wait until no slot is taken and no request is open."""
    await wait_until(
        lambda: front.state.limiter.in_use == 0 and len(front.state.open_requests) == 0,
        description="every slot to be free",
    )


# Capacity


@pytest.mark.rule("ADM-2", "ERR-26", "MET-6")
async def test_a_full_front_refuses_before_anything_is_queued() -> None:
    async with running_front(max_inflight=1) as front:
        front.horde.play(status("queued"))
        first = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.bodies, description="the first request to be submitted")
        second = front.client.chat(chat_body())
        assert await second.status() == 503
        headers = await second.headers()
        assert headers["retry-after"] == "5"
        assert "x-should-retry" not in headers
        assert (await second.json())["error"]["code"] == "FrontAtCapacity"
        assert len(front.horde.bodies) == 1
        await first.leave()


@pytest.mark.rule("ADM-2")
async def test_one_address_cannot_take_every_slot() -> None:
    async with running_front(max_inflight_per_source=1, trusted_proxies=("127.0.0.1",)) as front:
        front.horde.play(status("queued"))
        first = front.client.chat(chat_body(), headers={"X-Forwarded-For": "203.0.113.7"})
        await wait_until(lambda: front.horde.bodies, description="the first request to be submitted")
        same = front.client.chat(chat_body(), headers={"X-Forwarded-For": "203.0.113.7"})
        assert await same.status() == 503
        other = front.client.chat(chat_body(stream=True), headers={"X-Forwarded-For": "203.0.113.8"})
        assert await other.status() == 200
        await first.leave()
        await other.leave()


@pytest.mark.rule("ADM-3")
async def test_the_slot_is_given_back_however_a_request_ends() -> None:
    async with running_front() as front:
        await front.client.chat(chat_body()).json()
        await front.client.chat(chat_body(stream=True)).chunks()
        front.horde.play(status("faulted"))
        await front.client.chat(chat_body()).json()
        front.horde.submits = [Answer(403, {"message": "no", "rc": "CorruptPrompt"})]
        await front.client.chat(chat_body()).json()
        await nothing_is_held(front)


@pytest.mark.rule("ADM-1")
async def test_a_request_that_fails_validation_takes_no_slot() -> None:
    async with running_front(max_inflight=1) as front:
        assert await front.client.chat(chat_body(n=0)).status() == 400
        assert await front.client.chat(chat_body()).status() == 200


# Waiting


@pytest.mark.rule("WAI-1", "WAI-4")
async def test_a_waiting_request_is_polled_until_its_reply_is_there() -> None:
    async with running_front() as front:
        front.horde.play(status("queued"), status("queued"), status("processing"), status("replied"))
        assert await front.client.chat(chat_body()).status() == 200
        assert len(front.horde.of("GET", "/status/")) == 4


@pytest.mark.rule("WAI-5", "WAI-7", "CAN-3", "ERR-16")
async def test_at_its_deadline_a_request_is_read_once_more_cancelled_and_a_408() -> None:
    async with running_front(nonstream_timeout_seconds=0.1, poll_seconds=5) as front:
        front.horde.play(status("queued"))
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 408
        assert (await exchange.json())["error"]["code"] == "ChatRequestTimeout"
        assert len(front.horde.of("GET", "/status/")) == 2
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("WAI-7")
async def test_a_reply_that_the_deadlines_cancel_finds_is_delivered() -> None:
    async with running_front(nonstream_timeout_seconds=0.1, poll_seconds=5) as front:
        front.horde.play(status("processing"))
        front.horde.cancels = [Answer(body=status("replied"))]
        assert await front.client.chat(chat_body()).status() == 200


@pytest.mark.rule("WAI-6")
async def test_a_clients_own_timeout_shortens_the_wait_of_a_whole_reply() -> None:
    async with running_front(poll_seconds=5) as front:
        front.horde.play(status("queued"))
        exchange = front.client.chat(chat_body(), headers={"x-stainless-read-timeout": "0.2"})
        assert await exchange.status() == 408


@pytest.mark.rule("WAI-7", "STR-6")
async def test_an_open_stream_at_its_deadline_ends_in_the_error_event() -> None:
    async with running_front(stream_timeout_seconds=0.1) as front:
        front.horde.play(status("queued"))
        chunks = await front.client.chat(chat_body(stream=True)).chunks()
        assert chunks[0]["error"]["code"] == "ChatRequestTimeout"
        assert chunks[0]["error"]["metadata"]["retry_after"] == 30
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("NEW-3", "NEW-4", "ERR-24", "CAN-3")
async def test_nobody_eligible_for_the_whole_grace_is_a_503_and_cancelled() -> None:
    async with running_front() as front:
        front.horde.play(status("impossible"))
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 503
        assert (await exchange.json())["error"]["code"] == "no_eligible_worker"
        assert len(front.horde.of("GET", "/status/")) > 1
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("NEW-3")
async def test_a_worker_that_appears_within_the_grace_serves_the_request() -> None:
    async with running_front(fail_fast_grace_seconds=5) as front:
        front.horde.play(status("impossible"), status("impossible"), status("processing"), status("replied"))
        assert await front.client.chat(chat_body()).status() == 200


@pytest.mark.rule("NEW-19")
async def test_an_unknown_kind_of_reason_is_ignored_and_the_grace_applies() -> None:
    async with running_front() as front:
        front.horde.play(status("impossible", impossible_reason={"kind": "something_new"}))
        exchange = front.client.chat(chat_body())
        assert (await exchange.json())["error"]["code"] == "no_eligible_worker"


@pytest.mark.rule("NEW-12", "NEW-17")
async def test_a_limit_gap_reads_the_largest_size_from_the_model_list() -> None:
    reason = {"kind": "declaration_gap", "missing_declarations": [], "exceeded_limits": ["max_length"]}
    async with running_front() as front:
        front.horde.play(status("impossible", impossible_reason=reason))
        exchange = front.client.chat(chat_body(max_tokens=4096))
        assert await exchange.status() == 400
        error = (await exchange.json())["error"]
        assert (error["code"], error["param"]) == ("no_worker_supports_limit", "max_tokens")
        assert "declares now is 1024 tokens." in error["message"]


@pytest.mark.rule("WAI-9", "STR-3")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_status_read_refused_with_404_is_an_http_error(*, stream: bool) -> None:
    async with running_front() as front:
        front.horde.statuses = [Answer(404, {"message": "No such request.", "rc": "RequestNotFound"})]
        exchange = front.client.chat(chat_body(stream=stream))
        assert await exchange.status() == 404
        assert (await exchange.json())["error"]["code"] == "RequestNotFound"


@pytest.mark.rule("WAI-4")
async def test_a_status_read_that_fails_is_read_again_and_costs_nothing() -> None:
    async with running_front() as front:
        front.horde.statuses = [
            Answer(500, {"message": "oops"}),
            Answer(429, {"message": "slow down", "rc": "TooManyPrompts"}, {"Retry-After": "0"}),
            Answer(drop=True),
            Answer(200, b"not json"),
            Answer(body=status("replied")),
        ]
        assert await front.client.chat(chat_body()).status() == 200
        assert front.horde.cancelled == []


# fail_fast


@pytest.mark.rule("FFA-1", "FFA-2", "FFA-3", "FFA-15", "CAN-3")
@pytest.mark.parametrize("stream", [False, True])
async def test_fail_fast_refuses_without_a_free_thread_at_the_first_read(*, stream: bool) -> None:
    async with running_front() as front:
        front.horde.play(status("queued", eligible_worker_threads=0, queue_position=0, wait_time=0))
        exchange = front.client.chat(chat_body(stream=stream, horde={"availability_mode": "fail_fast"}))
        assert await exchange.status() == 503
        assert (await exchange.headers())["retry-after"] == "30"
        assert (await exchange.json())["error"]["code"] == "queue_unavailable"
        assert len(front.horde.of("GET", "/status/")) == 1
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("FFA-4", "FFA-5", "FFA-10", "FFA-11", "FFA-12")
async def test_fail_fast_waits_for_a_read_that_knows_the_queue_before_it_judges_the_wait() -> None:
    async with running_front() as front:
        unknown = status("queued", queue_position=0, wait_time=0)
        front.horde.play(unknown, unknown, status("queued", queue_position=9, wait_time=900))
        exchange = front.client.chat(chat_body(horde={"availability_mode": "fail_fast"}))
        assert await exchange.status() == 503
        assert (await exchange.headers())["retry-after"] == "600"
        assert len(front.horde.of("GET", "/status/")) == 3


@pytest.mark.rule("FFA-13")
async def test_fail_fast_admits_a_request_that_is_already_being_generated() -> None:
    async with running_front() as front:
        front.horde.play(status("processing", eligible_worker_threads=0), status("replied"))
        assert await front.client.chat(chat_body(horde={"availability_mode": "fail_fast"})).status() == 200


@pytest.mark.rule("FFA-8")
async def test_a_declaration_gap_on_the_deciding_read_keeps_its_answer() -> None:
    reason = {"kind": "declaration_gap", "missing_declarations": ["seed"], "exceeded_limits": []}
    async with running_front() as front:
        front.horde.play(status("impossible", impossible_reason=reason))
        exchange = front.client.chat(chat_body(horde={"availability_mode": "fail_fast"}))
        assert await exchange.status() == 404


@pytest.mark.rule("FFA-9")
async def test_a_status_that_does_not_report_threads_is_no_reason_to_refuse() -> None:
    async with running_front() as front:
        front.horde.play(status("queued", eligible_worker_threads=None, wait_time=1), status("replied"))
        assert await front.client.chat(chat_body(horde={"availability_mode": "fail_fast"})).status() == 200


@pytest.mark.rule("FFA-14", "FFA-17")
async def test_wait_mode_queues_whatever_the_estimate_says() -> None:
    async with running_front() as front:
        front.horde.play(status("queued", eligible_worker_threads=0, wait_time=9000), status("replied"))
        assert await front.client.chat(chat_body()).status() == 200


# Lost submits


@pytest.mark.rule("SUB-1", "SUB-2", "SUB-3", "RTY-11")
async def test_a_lost_submit_answer_is_recovered_under_the_same_key_without_a_second_request() -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(drop=True), Answer(500, {"message": "no rc"}), None]
        assert await front.client.chat(chat_body()).status() == 200
        keys = [body["operation_key"] for body in front.horde.bodies]
        assert len(keys) == 3
        assert len(set(keys)) == 1
        assert len(front.horde.ids) == 1


@pytest.mark.rule("SUB-4", "SUB-5", "ERR-23", "RTY-8", "MET-24")
async def test_an_outcome_that_stays_unknown_is_said_with_the_operation_key() -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(drop=True)]
        front.horde.operation_cancels = [Answer(500, {"message": "no"})]
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 502
        assert (await exchange.headers())["x-should-retry"] == "false"
        error = (await exchange.json())["error"]
        key = front.horde.bodies[0]["operation_key"]
        assert error["metadata"] == {"submit_outcome": "unknown", "operation_key": key}
        front.horde.operation_cancels = [Answer(body={"tombstone": True})]
        await wait_until(lambda: front.state.cancels.failed_count == 0, description="the cancel to be sent again")


@pytest.mark.rule("SUB-6", "RTY-5")
async def test_a_lost_submit_that_is_cancelled_by_its_key_is_safe_to_retry() -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(drop=True)]
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 502
        assert "x-should-retry" not in await exchange.headers()
        assert (await exchange.json())["error"]["metadata"] == {}
        assert len(front.horde.of("DELETE", "/operation/")) == 1


@pytest.mark.rule("SUB-1")
async def test_a_refusal_of_a_resent_submit_is_not_believed_before_the_key_is_cancelled() -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(drop=True), Answer(403, {"message": "no kudos", "rc": "KudosUpfront"})]
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 403
        assert len(front.horde.of("DELETE", "/operation/")) == 1


@pytest.mark.rule("SUB-6", "SUB-10")
async def test_a_root_that_does_not_connect_is_passed_over_for_the_next() -> None:
    async with running_front() as working:
        urls = ("http://127.0.0.1:9", working.horde.url)
        async with running_front(horde=working.horde, horde_urls=urls) as front:
            assert await front.client.chat(chat_body()).status() == 200


@pytest.mark.rule("SUB-6", "ERR-23")
async def test_a_horde_that_cannot_be_reached_at_all_is_a_502_that_may_be_retried() -> None:
    async with running_front(horde_urls=("http://127.0.0.1:9",)) as front:
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 502
        assert "x-should-retry" not in await exchange.headers()
        assert (await exchange.json())["error"]["code"] == "HordeUnavailable"


# Clients that leave


@pytest.mark.rule("CAN-1", "CAN-2", "ADM-3")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_has_its_request_cancelled(*, stream: bool) -> None:
    async with running_front() as front:
        front.horde.play(status("queued"))
        exchange = front.client.chat(chat_body(stream=stream))
        await wait_until(lambda: front.horde.of("GET", "/status/"), description="the request to wait")
        await exchange.leave()
        await wait_until(lambda: front.horde.cancelled, description="the cancel")
        await nothing_is_held(front)
        assert list(front.horde.ids.values()) == front.horde.cancelled


@pytest.mark.rule("CAN-1", "SUB-1")
async def test_a_client_that_leaves_during_the_submit_lets_it_finish_then_it_is_cancelled() -> None:
    async with running_front() as front:
        release = asyncio.Event()
        front.horde.submits = [Answer(202, {"id": "late", "kudos": 1}, held=release)]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.bodies, description="the submit to arrive")
        await exchange.leave()
        assert front.horde.cancelled == []
        release.set()
        await wait_until(lambda: front.horde.cancelled == ["late"], description="the cancel after the submit")


@pytest.mark.rule("CAN-6", "MET-33")
async def test_a_cancel_that_fails_is_sent_again_until_it_is_acknowledged() -> None:
    async with running_front() as front:
        front.horde.play(status("queued"))
        front.horde.cancels = [Answer(500, {"message": "no"}), Answer(drop=True), Answer(body=status("cancelled"))]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.of("GET", "/status/"), description="the request to wait")
        await exchange.leave()
        await wait_until(lambda: len(front.horde.cancelled) >= 3, description="the third cancel")
        await wait_until(lambda: front.state.cancels.failed_count == 0, description="nothing left to cancel")


@pytest.mark.rule("CAN-10")
async def test_a_request_that_is_already_gone_is_not_cancelled_again() -> None:
    async with running_front() as front:
        front.horde.play(status("queued"))
        front.horde.cancels = [Answer(404, {"message": "gone", "rc": "RequestNotFound"})]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.of("GET", "/status/"), description="the request to wait")
        await exchange.leave()
        await wait_until(lambda: front.horde.cancelled, description="the cancel")
        assert front.state.cancels.failed_count == 0


async def test_a_client_that_stops_reading_is_given_up_and_its_request_cancelled() -> None:
    async with running_front(write_timeout_seconds=0.05, keepalive_seconds=0.01) as front:
        front.horde.play(status("queued"))
        exchange = front.client.chat(chat_body(stream=True), buffered_parts=2)
        assert await exchange.status() == 200
        await wait_until(lambda: front.horde.cancelled, description="the cancel")
        await nothing_is_held(front)


# Shutdown


@pytest.mark.rule("CAN-7")
async def test_at_shutdown_running_requests_get_their_time_and_then_an_answer() -> None:
    async with running_front(drain_seconds=0.1) as front:
        front.horde.play(status("queued"))
        whole = front.client.chat(chat_body())
        stream = front.client.chat(chat_body(stream=True))
        await wait_until(lambda: len(front.horde.of("GET", "/status/")) >= 2, description="both to wait")
        front.state.stopping.set()
        ready = front.client.request("GET", "/readyz")
        assert await ready.status() == 503
        assert await front.client.request("GET", "/healthz").status() == 200
        assert await whole.status() == 503
        assert (await whole.headers())["x-should-retry"] == "false"
        assert (await whole.json())["error"]["code"] == "FrontShuttingDown"
        assert (await stream.chunks())[0]["error"]["code"] == "FrontShuttingDown"
        assert sorted(front.horde.cancelled) == sorted(front.horde.ids.values())


async def test_a_reply_that_comes_within_the_drain_time_is_delivered() -> None:
    async with running_front(drain_seconds=5) as front:
        release = asyncio.Event()
        front.horde.statuses = [Answer(body=status("queued")), Answer(body=status("replied"), held=release)]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: len(front.horde.of("GET", "/status/")) == 2, description="the second read")
        front.state.stopping.set()
        release.set()
        assert await exchange.status() == 200
