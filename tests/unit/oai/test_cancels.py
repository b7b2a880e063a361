"""Cancels: their budget, their connections, what is kept for another try (rules CAN)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from horde.chat_contract import CHAT_REQUEST_EXPIRY_SECONDS
from horde.oai import cancel as cancel_module
from horde.oai.cancel import CancelOutcome, Cancels, CancelTarget
from horde.oai.horde_client import (
    Caller,
    CallOutcome,
    CallType,
    HordeClient,
    cancel_max_connections,
    create_http_client,
)
from horde.oai.roots import Roots
from tests.support.clock import FakeClock
from tests.support.scripted_horde import Answer, ScriptedHorde, scripted_horde
from tests.support.waiting import wait_until


class Observed:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[CancelOutcome] = []
        self.calls: list[CallOutcome] = []

    def cancel_ended(self, outcome: CancelOutcome) -> None:
        self.outcomes.append(outcome)

    def native_call(self, call_type: CallType, outcome: CallOutcome, seconds: float) -> None:
        assert call_type is CallType.CANCEL
        assert seconds >= 0
        self.calls.append(outcome)


def target(number: int = 0, submitted_at: float | None = None) -> CancelTarget:
    submitted = time.monotonic() if submitted_at is None else submitted_at
    return CancelTarget(Caller("key", "test:1:none"), submitted, f"operation-{number}", f"request-{number}")


@asynccontextmanager
async def cancels(
    horde: ScriptedHorde, *, timeout_seconds: float = 1.0, clock: FakeClock | None = None
) -> AsyncIterator[tuple[Cancels, HordeClient, Observed]]:
    observed = Observed()
    async with create_http_client(4) as session, create_http_client(4) as own:
        client = HordeClient(session, own, Roots([horde.url]), call_slots=8, observer=observed)
        made = Cancels(client, timeout_seconds=timeout_seconds, retry_seconds=60, observer=observed)
        if clock is not None:
            made = Cancels(client, timeout_seconds=timeout_seconds, retry_seconds=60, observer=observed, clock=clock)
        yield made, client, observed


@pytest.mark.rule("CAN-5", "MAP-23")
def test_cancels_have_an_eighth_of_the_call_slots_and_at_least_four() -> None:
    assert [cancel_max_connections(slots) for slots in (4, 32, 256)] == [4, 4, 32]


@pytest.mark.rule("CAN-4", "MET-33")
async def test_a_cancel_that_the_horde_does_not_answer_in_time_has_timed_out() -> None:
    async with scripted_horde() as horde, cancels(horde, timeout_seconds=0.05) as (made, _, observed):
        release = asyncio.Event()
        horde.cancels = [Answer(body={}, held=release)]
        assert await made.cancel(target()) is None
        assert observed.outcomes == [CancelOutcome.TIMED_OUT]
        assert observed.calls == [CallOutcome.ABANDONED]
        assert made.failed_count == 1
        release.set()


@pytest.mark.rule("CAN-4", "CAN-5", "MET-33")
async def test_a_cancel_that_finds_no_connection_in_time_is_not_started() -> None:
    async with scripted_horde() as horde, cancels(horde, timeout_seconds=0.05) as (made, client, observed):
        for _ in range(4):
            await client.cancel_slots.acquire()
        await made.cancel(target())
        assert observed.outcomes == [CancelOutcome.NOT_STARTED]
        assert horde.calls == []
        assert made.failed_count == 1


@pytest.mark.rule("CAN-8")
async def test_a_request_past_its_expiry_is_no_longer_cancelled() -> None:
    clock = FakeClock()
    async with scripted_horde() as horde, cancels(horde, clock=clock) as (made, _, _observed):
        horde.cancels = [Answer(500, {"message": "no"})]
        await made.cancel(target(submitted_at=clock.now))
        clock.advance(CHAT_REQUEST_EXPIRY_SECONDS - 1)
        await made.retry()
        assert len(horde.cancelled) == 2
        clock.advance(1)
        await made.retry()
        assert len(horde.cancelled) == 2
        assert made.failed_count == 0


@pytest.mark.rule("CAN-9")
async def test_of_too_many_failed_cancels_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel_module, "MAX_FAILED_CANCELS", 2)
    async with scripted_horde() as horde, cancels(horde) as (made, _, _observed):
        horde.cancels = [Answer(500, {"message": "no"})]
        for number in range(3):
            await made.cancel(target(number))
        assert made.failed_count == 2
        horde.calls.clear()
        await made.retry()
        assert sorted(horde.cancelled) == ["request-1", "request-2"]


@pytest.mark.rule("CAN-7")
async def test_the_drain_waits_for_cancels_under_way_and_sends_the_failed_ones_once_more() -> None:
    async with scripted_horde() as horde, cancels(horde) as (made, _, observed):
        horde.cancels = [Answer(500, {"message": "no"}), Answer(body={"done": True})]
        made.spawn(target())
        await wait_until(lambda: horde.cancelled, description="the first cancel")
        await made.drain()
        assert observed.outcomes == [CancelOutcome.FAILED, CancelOutcome.ACKNOWLEDGED]
        assert made.failed_count == 0
