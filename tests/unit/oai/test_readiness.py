"""A front whose Horde is away, and how it learns that it is back (decision U32)."""

import pytest

from horde.oai import health, roots
from horde.oai.roots import Roots
from tests.support.clock import FakeClock
from tests.support.front import Front, chat_body, running_front
from tests.support.scripted_horde import Answer, chat_model
from tests.support.waiting import wait_until


async def readiness(front: Front) -> int:
    return await front.client.request("GET", "/readyz").status()


async def test_an_unready_front_becomes_ready_again_without_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_ROOTS_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(roots, "_AWAY_CALL_SECONDS", 0.01)
    async with running_front() as front:
        front.horde.submits = [Answer(drop=True)]
        front.horde.operation_cancels = [Answer(drop=True)]
        front.horde.models = [Answer(drop=True)]
        assert await front.client.chat(chat_body()).status() == 502
        await wait_until(
            lambda: len(front.horde.of("GET", "/status/models")) >= 2, description="calls while it is away"
        )
        assert await readiness(front) == 503
        front.horde.models = [Answer(body=[chat_model()])]

        async def is_ready() -> bool:
            return await readiness(front) == 200

        await wait_until(is_ready, description="the front to be ready again")


async def test_a_horde_that_answers_is_not_called_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_AWAY_CALL_SECONDS", 0.0)
    async with running_front() as front:
        for _ in range(3):
            await front.client.chat(chat_body()).json()
        assert front.horde.of("GET", "/status/models") == []


def test_the_horde_is_away_once_every_root_has_failed_and_until_one_answers() -> None:
    clock = FakeClock()
    known = Roots(["https://a", "https://b"], clock=clock)
    known.failed("https://a")
    assert not known.away
    known.failed("https://b")
    clock.advance(31)
    assert (known.away, known.away_seconds) == (True, 31)
    known.answered("https://b")
    assert (known.away, known.away_seconds) == (False, 0)
