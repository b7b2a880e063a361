"""What happens when a request is given up in the middle of something: a submit, a cancel, a shutdown."""

import asyncio

import pytest
from loguru import logger
from starlette.types import Message

from horde.oai.chat import ChatExchange
from tests.support.front import Front, chat_body, running_front
from tests.support.scripted_horde import Answer, status
from tests.support.streaming_transport import Exchange
from tests.support.waiting import wait_until


async def waiting(front: Front, count: int = 1) -> None:
    await wait_until(lambda: len(front.horde.of("GET", "/status/")) >= count, description="the request to wait")


@pytest.mark.rule("CAN-7", "RTY-5")
async def test_a_submit_in_flight_at_shutdown_is_cancelled_by_its_key_and_may_be_retried() -> None:
    async with running_front(drain_seconds=0.05) as front:
        never = asyncio.Event()
        front.horde.submits = [Answer(202, {"id": "x", "kudos": 1}, held=never)]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.bodies, description="the submit")
        front.state.stopping.set()
        assert await exchange.status() == 503
        assert "x-should-retry" not in await exchange.headers()
        key = front.horde.bodies[0]["operation_key"]
        assert [call.path.rsplit("/", 1)[-1] for call in front.horde.of("DELETE", "/operation/")] == [key]
        never.set()


@pytest.mark.rule("SUB-4", "SUB-5", "RTY-4")
async def test_a_submit_in_flight_at_shutdown_whose_cancel_fails_has_an_unknown_outcome() -> None:
    async with running_front(drain_seconds=0.05) as front:
        never = asyncio.Event()
        front.horde.submits = [Answer(202, {"id": "x", "kudos": 1}, held=never)]
        front.horde.operation_cancels = [Answer(500, {"message": "no"})]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.bodies, description="the submit")
        front.state.stopping.set()
        assert await exchange.status() == 503
        assert (await exchange.headers())["x-should-retry"] == "false"
        assert (await exchange.json())["error"]["metadata"] == {
            "submit_outcome": "unknown",
            "operation_key": front.horde.bodies[0]["operation_key"],
        }
        front.horde.operation_cancels = [Answer(body={"tombstone": True})]
        never.set()


@pytest.mark.rule("CAN-7", "CAN-1")
async def test_a_submit_whose_client_left_is_cancelled_by_its_key_when_the_front_stops_before_it_ends() -> None:
    async with running_front(cancel_timeout_seconds=0.5) as front:
        horde = front.horde
        never = asyncio.Event()
        horde.submits = [Answer(202, {"id": "x", "kudos": 1}, held=never)]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: horde.bodies, description="the submit")
        await exchange.leave()
        await front.state.cancels.drain()
        assert len(horde.of("DELETE", "/operation/")) == 1
        never.set()


async def test_once_running_requests_are_given_up_no_further_one_begins() -> None:
    async with running_front(drain_seconds=0.01) as front:
        front.state.stopping.set()
        front.state.open_requests.interrupt_all()
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 503
        assert (await exchange.json())["error"]["code"] == "FrontShuttingDown"
        assert front.horde.calls == []


@pytest.mark.rule("CAN-1", "CAN-4")
async def test_a_client_that_leaves_during_the_cancel_neither_stops_nor_repeats_it() -> None:
    async with running_front(nonstream_timeout_seconds=0.05) as front:
        release = asyncio.Event()
        front.horde.play(status("queued"))
        front.horde.cancels = [Answer(body=status("cancelled"), held=release)]
        exchange = front.client.chat(chat_body())
        await wait_until(lambda: front.horde.cancelled, description="the deadline's cancel")
        await exchange.leave()
        release.set()
        await front.state.cancels.drain()
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("STR-3", "WAI-9", "CAN-3")
@pytest.mark.parametrize(("status_code", "rc"), [(401, "InvalidAPIKey"), (404, "RequestNotFound")])
async def test_a_status_that_is_refused_for_good_is_cancelled_too(status_code: int, rc: str) -> None:
    async with running_front() as front:
        front.horde.statuses = [Answer(status_code, {"message": "No.", "rc": rc})]
        assert await front.client.chat(chat_body()).status() == status_code
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("SUB-6")
async def test_an_id_that_could_not_stand_in_a_header_is_no_answer() -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(202, {"id": "a\r\nx-evil: 1", "kudos": 1}), None]
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 200
        assert "x-evil" not in await exchange.headers()


async def test_a_waiting_request_keeps_none_of_its_body() -> None:
    async with running_front() as front:
        front.horde.play(status("queued"))
        front.client.chat(chat_body(messages=[{"role": "user", "content": "x" * 100_000}]))
        await waiting(front)
        (exchange,) = front.state.open_requests._open
        assert isinstance(exchange, ChatExchange)
        assert exchange._submission is None
        assert exchange._request.messages == []


async def test_a_client_that_stalls_on_the_error_event_is_no_defect_and_cancelled_once() -> None:
    errors: list[str] = []
    handler = logger.add(errors.append, level="ERROR", format="{message}")
    async with running_front(write_timeout_seconds=0.05, stream_timeout_seconds=0.1) as front:
        front.horde.play(status("queued"))
        exchange = front.client.chat(chat_body(stream=True), buffered_parts=1)
        assert await exchange.status() == 200
        await exchange.ended()
        assert len(front.horde.cancelled) == 1
    logger.remove(handler)
    assert errors == []


@pytest.mark.rule("CAN-1")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_is_gone_without_a_word_is_a_client_that_left(
    monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    async def closed(_exchange: Exchange, _message: Message) -> None:
        raise RuntimeError("the handler is closed")

    monkeypatch.setattr(Exchange, "_send", closed)
    async with running_front(keepalive_seconds=0.02) as front:
        front.horde.play(status("queued"), status("queued"), status("faulted"))
        exchange = front.client.chat(chat_body(stream=stream))
        await exchange.ended()
        assert front.state.limiter.in_use == 0
