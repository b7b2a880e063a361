"""A model server that dies, hangs or only fails: jobs go back at once, and the worker stays away until it is well."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger

from tests.support.scripted_model import Cut, Fail, Finish, Say, ScriptedModel, Stall, tokens
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served, serving
from tests.support.waiting import WaitUntil
from tests.support.working import working

MODEL = "scripted-1B"

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


def job(**changes: Any) -> dict[str, Any]:
    return chat_job(model=MODEL, interval_seconds=0.1, **changes)


async def submitted(horde: ScriptedPops, wait_until: WaitUntil, popped: dict[str, Any]) -> dict[str, Any]:
    found = await wait_until(lambda: horde.submit_of(popped["id"]), description="the submit")
    assert isinstance(found, dict)
    return found


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """What is logged."""
    kept: list[str] = []
    handler = logger.add(lambda message: kept.append(message.record["message"]), level="INFO")
    yield kept
    logger.remove(handler)


@pytest.mark.rule("WRK-4")
async def test_a_backend_that_dies_faults_every_job_at_once_also_those_whose_connection_hangs(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    die = asyncio.Event()
    model.server.play([Say("The"), Stall(asyncio.Event())], [Say("The"), Stall(die), Cut()])
    hanging, cut = job(), job()
    horde.server.give(hanging, cut)
    async with working(horde.url, model.url, threads=2):
        await wait_until(lambda: model.server.open_streams == 2, description="two jobs")
        model.server.available = False
        die.set()
        for popped in (hanging, cut):
            assert (await submitted(horde.server, wait_until, popped))["fault_reason"] == "generation_error"
        await wait_until(lambda: model.server.open_streams == 0, description="the streams to be closed")
        assert horde.server.pops[-1]["chat_jobs"] is False


async def test_one_job_that_is_cut_leaves_the_others_alone_while_the_backend_answers(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    cut_it, go_on = asyncio.Event(), asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()], [Say("The"), Stall(cut_it), Cut()])
    served, cut = job(), job()
    horde.server.give(served, cut)
    async with working(horde.url, model.url, threads=2):
        await wait_until(lambda: model.server.open_streams == 2, description="two jobs")
        listed = model.server.listed
        cut_it.set()
        await submitted(horde.server, wait_until, cut)
        await wait_until(lambda: model.server.listed > listed, description="a probe")
        go_on.set()
        assert (await submitted(horde.server, wait_until, served))["message"]["content"] == "The sea"


async def test_a_backend_that_only_fails_does_not_eat_the_queue(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([Fail(500)])
    jobs = [job() for _ in range(4)]
    horde.server.give(*jobs)
    async with working(horde.url, model.url):
        for popped in jobs[:3]:
            await submitted(horde.server, wait_until, popped)
        await wait_until(lambda: len(horde.server.pops) >= 4, description="the worker to withdraw")
        assert [pop["chat_jobs"] for pop in horde.server.pops[:4]] == [True, True, True, False]


@pytest.mark.rule("WRK-5")
async def test_a_cancelled_job_is_one_line_in_the_log(
    horde: Horde, model: Model, wait_until: WaitUntil, messages: list[str]
) -> None:
    model.server.play([Say("The sea"), Stall(asyncio.Event())])
    popped = job(stream_progress=True)
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await wait_until(lambda: horde.server.posts_of(popped["id"]), description="the first post")
        horde.server.cancelled.add(popped["id"])
        await wait_until(lambda: model.server.open_streams == 0, description="the stream to be closed")
        await wait_until(
            lambda: (
                [line for line in messages if popped["id"] in line]
                == [f"Job {popped['id']}: cancelled by the Horde; its generation was stopped and nothing is submitted."]
            ),
            description="the line",
        )
    assert horde.server.submits == []


async def test_a_reply_made_while_the_horde_is_away_is_kept_and_submitted_when_it_is_back(
    model: Model, wait_until: WaitUntil, messages: list[str]
) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()], tokens("Yes"))
    popped = job()
    pops = ScriptedPops()
    pops.give(popped)
    async with serving(pops) as url:
        running = working(url, model.url)
        await running.__aenter__()
        await wait_until(lambda: model.server.open_streams, description="the job")
    try:
        go_on.set()
        await wait_until(lambda: any("is kept and sent again" in line for line in messages), description="the line")
        assert pops.submits == []
        async with serving(pops, port=int(url.rpartition(":")[2])):
            assert (await submitted(pops, wait_until, popped))["message"]["content"] == "The sea"
    finally:
        await running.__aexit__(None, None, None)
