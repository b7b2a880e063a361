"""Fronts that die, are paused or stop with requests open: nothing runs on for nobody (decision 0044)."""

import signal

import pytest

from tests.support.front_process import front_process
from tests.support.waiting import wait_until
from tests.support.waiting_horde import WaitingHorde

CLIENTS = 12


async def all_noted(waiting: WaitingHorde, count: int) -> None:
    async def noted() -> bool:
        return len(await waiting.records()) == count

    await wait_until(noted, description=f"{count} records in Redis", seconds=60)


async def nothing_open(waiting: WaitingHorde, cancelled: int) -> None:
    async def ended() -> object:
        states = await waiting.states()
        return states == {"cancelled": cancelled} or None

    await wait_until(ended, description="the Horde to have no open request", seconds=60)


async def test_requests_of_a_front_that_was_killed_are_cancelled_by_the_next_one(waiting: WaitingHorde) -> None:
    horde, settings = waiting.native.api_url, waiting.front_settings
    async with front_process(horde, **settings) as front:
        async with waiting.clients(front.url, CLIENTS):
            await all_noted(waiting, CLIENTS)
            dumped = b"".join((await waiting.records()).values())
            await front.kill()
        assert len(waiting.ended) == CLIENTS
    assert waiting.user.api_key is not None
    assert waiting.user.api_key.encode() not in dumped
    assert await waiting.states() == {"waiting": CLIENTS}
    async with front_process(horde, **settings) as heir:
        await nothing_open(waiting, CLIENTS)
        await all_noted(waiting, 0)
        assert len(await waiting.leases()) == 1
        heir.send_signal(signal.SIGTERM)
        code, log = await heir.ended()
    assert code == 0, log
    assert await waiting.leases() == []


async def test_two_fronts_share_what_a_third_left_and_none_cancels_for_the_living(waiting: WaitingHorde) -> None:
    # The living renew their leases on a machine that is busy, too.
    horde, settings = waiting.native.api_url, {**waiting.front_settings, "front_lease_seconds": 4}
    async with (
        front_process(horde, **settings) as dying,
        front_process(horde, **settings) as one,
        front_process(horde, **settings) as two,
        waiting.clients(one.url, 3),
    ):
        async with waiting.clients(dying.url, CLIENTS):
            await all_noted(waiting, CLIENTS + 3)
            await dying.kill()

        async def only_the_living_are_left() -> bool:
            return await waiting.states() == {"cancelled": CLIENTS, "waiting": 3}

        await wait_until(only_the_living_are_left, description="the cancels", seconds=60)
        await all_noted(waiting, 3)
        assert len(await waiting.leases()) == 2
        await one.kill()
        await nothing_open(waiting, CLIENTS + 3)
        await two.kill()


async def test_a_front_that_was_paused_too_long_tells_its_clients_and_goes_on(waiting: WaitingHorde) -> None:
    horde, settings = waiting.native.api_url, waiting.front_settings
    async with front_process(horde, **settings, signalled_poll_seconds=1) as paused:
        async with waiting.clients(paused.url, CLIENTS):
            await all_noted(waiting, CLIENTS)
            paused.send_signal(signal.SIGSTOP)
            async with front_process(horde, **settings) as other:
                await nothing_open(waiting, CLIENTS)
                await other.kill()
            paused.send_signal(signal.SIGCONT)
        # A stream that was open ends with an error event, the rest with a status.
        assert set(waiting.ended) == {502, "error event"}
        waiting.ended.clear()
        async with waiting.clients(paused.url, 1):
            await all_noted(waiting, 1)
            job = await waiting.worker.pop_job()
            await waiting.worker.reply(job)
        assert waiting.ended == [200]
        await all_noted(waiting, 0)
        log = await paused.kill()
    assert "Traceback" not in log


@pytest.mark.rule("CAN-7")
async def test_a_stop_under_load_leaves_no_request_on_the_horde(waiting: WaitingHorde) -> None:
    horde, settings = waiting.native.api_url, waiting.front_settings
    async with front_process(horde, **settings, drain_seconds=4) as front:
        async with waiting.clients(front.url, CLIENTS):
            job = await waiting.worker.pop_job()
            front.send_signal(signal.SIGTERM)
            answer = await waiting.worker.reply(job)
            assert answer.status == 200
        code, log = await front.ended()
    assert code == 0, log
    assert await waiting.states() == {"replied": 1, "cancelled": CLIENTS - 1}
    assert sum(1 for end in waiting.ended if end == 200) == 1
    assert {end for end in waiting.ended if end != 200} == {503, "error event"}
    assert await waiting.records() == {}
    assert await waiting.leases() == []
