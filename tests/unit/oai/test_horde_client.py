"""Calls to the Horde: their time, the wait for a slot in it, and which of their ends speak against a root."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from horde.oai.horde_client import (
    Caller,
    CallOutcome,
    CallType,
    HordeClient,
    HordeUnreachableError,
    create_http_client,
)
from horde.oai.roots import Roots
from tests.support.model_horde import ModelHorde
from tests.support.scripted_horde import Answer, ScriptedHorde, scripted_horde, status
from tests.support.virtual_time import run_in_virtual_time
from tests.support.waiting import wait_until

CALLER = Caller("key", "test:1:none")
NOBODY_LISTENS = "http://127.0.0.1:9/api"


class Observed:
    """Keeps how each call ended."""

    def __init__(self) -> None:
        self.calls: list[tuple[CallType, CallOutcome]] = []

    def native_call(self, call_type: CallType, outcome: CallOutcome, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((call_type, outcome))


@asynccontextmanager
async def calling(
    *roots: str, call_slots: int = 4, call_seconds: float = 10.0
) -> AsyncIterator[tuple[HordeClient, Observed]]:
    observed = Observed()
    async with create_http_client(call_slots) as session, create_http_client(4) as cancel_session:
        yield (
            HordeClient(
                session,
                cancel_session,
                Roots(roots),
                call_slots=call_slots,
                call_seconds=call_seconds,
                observer=observed,
            ),
            observed,
        )


@asynccontextmanager
async def hanging_horde() -> AsyncIterator[ScriptedHorde]:
    """A Horde that takes status reads and answers them when the test is over."""
    release = asyncio.Event()
    async with scripted_horde() as horde:
        horde.statuses = [Answer(body=status("queued"), held=release)]
        try:
            yield horde
        finally:
            release.set()


@pytest.mark.rule("SUB-11")
async def test_a_call_that_finds_no_slot_within_its_limit_was_not_received_and_blames_no_root() -> None:
    async with hanging_horde() as horde, calling(horde.url, call_slots=1) as (client, observed):
        first = asyncio.create_task(client.status("a", CALLER, limit_seconds=10))
        await wait_until(lambda: horde.calls, description="the only slot to be taken")
        with pytest.raises(HordeUnreachableError) as caught:
            await client.status("b", CALLER, limit_seconds=0.05)
        assert (caught.value.maybe_received, caught.value.root) == (False, None)
        assert observed.calls == []
        assert not client.roots.away
        first.cancel()
        await asyncio.wait({first})
        horde.statuses = [Answer(body=status("queued"))]
        assert (await client.status("c", CALLER, limit_seconds=30)).status == 200


def test_the_wait_for_a_slot_is_part_of_a_calls_limit() -> None:
    horde: Any = ModelHorde({"GET": ["silent", "silent"]})
    client = HordeClient(horde, horde, Roots(["http://horde/api"]), call_slots=1, call_seconds=60, observer=Observed())

    async def call(limit_seconds: float) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(HordeUnreachableError):
            await client.status("a", CALLER, limit_seconds=limit_seconds)
        return loop.time() - began

    async def both() -> tuple[float, float]:
        return await asyncio.gather(call(5), call(6))

    # The second has a second left when the first gives its slot back.
    assert run_in_virtual_time(both()) == pytest.approx((5, 6), abs=0.01)
    assert [call.at - horde.calls[0].at for call in horde.calls] == [0, pytest.approx(5, abs=0.01)]


@pytest.mark.rule("MET-16", "SUB-10")
async def test_a_call_cut_short_by_its_requests_own_end_is_abandoned_and_the_root_keeps_its_place() -> None:
    async with hanging_horde() as slow, calling(slow.url, NOBODY_LISTENS, call_seconds=10) as (client, observed):
        with pytest.raises(HordeUnreachableError) as caught:
            await client.status("a", CALLER, limit_seconds=0.1)
        assert caught.value.maybe_received
        assert observed.calls == [(CallType.STATUS, CallOutcome.ABANDONED)]
        assert client.roots.pick() == slow.url


@pytest.mark.rule("MET-16", "SUB-10")
async def test_a_root_that_does_not_answer_in_the_time_of_a_call_is_unreachable_and_rests() -> None:
    async with hanging_horde() as slow, calling(slow.url, NOBODY_LISTENS, call_seconds=0.1) as (client, observed):
        with pytest.raises(HordeUnreachableError):
            await client.status("a", CALLER, limit_seconds=0.1)
        assert observed.calls == [(CallType.STATUS, CallOutcome.UNREACHABLE)]
        assert client.roots.pick() == NOBODY_LISTENS


@pytest.mark.rule("MET-16", "SUB-10")
async def test_a_root_that_refuses_the_connection_rests_however_little_time_there_was() -> None:
    async with scripted_horde() as other, calling(NOBODY_LISTENS, other.url) as (client, observed):
        with pytest.raises(HordeUnreachableError) as caught:
            await client.status("a", CALLER, limit_seconds=1)
        assert not caught.value.maybe_received
        assert observed.calls == [(CallType.STATUS, CallOutcome.UNREACHABLE)]
        assert client.roots.pick() == other.url


@pytest.mark.rule("MET-16")
async def test_a_cancelled_call_is_abandoned_and_the_root_keeps_its_place() -> None:
    async with hanging_horde() as horde, calling(horde.url) as (client, observed):
        call = asyncio.create_task(client.status("a", CALLER, limit_seconds=10))
        await wait_until(lambda: horde.calls, description="the call")
        call.cancel()
        await asyncio.wait({call})
        assert observed.calls == [(CallType.STATUS, CallOutcome.ABANDONED)]
        assert not client.roots.away


async def test_a_large_body_arrives_whole_and_is_not_written_in_one_go() -> None:
    # The HTTP library warns of bytes that would hold up the event loop, and a warning fails the test.
    body = {"operation_key": "k", "text": "x" * 3 * 2**20}
    async with scripted_horde() as horde, calling(horde.url) as (client, _):
        answer = await client.submit(orjson.dumps(body), CALLER, limit_seconds=10)
        assert answer.status == 202
        assert horde.bodies == [body]
        headers = horde.calls[0].headers
        assert headers["content-type"] == "application/json"
        assert headers["content-length"] == str(len(orjson.dumps(body)))


async def test_a_call_after_the_front_closed_its_connections_is_one_that_was_not_received() -> None:
    async with scripted_horde() as horde:
        async with calling(horde.url) as (client, observed):
            pass
        for call in (client.status, client.cancel, client.cancel_operation):
            with pytest.raises(HordeUnreachableError) as caught:
                await call("a", CALLER, limit_seconds=1)
            assert not caught.value.maybe_received
        assert horde.calls == []
        assert {outcome for _, outcome in observed.calls} == {CallOutcome.ABANDONED}
        assert not client.roots.away
