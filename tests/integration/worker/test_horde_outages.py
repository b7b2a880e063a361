"""A Horde whose answers get lost, refuse or make no sense: nothing is stranded, doubled or dropped."""

from typing import Any

import pytest

from horde.worker.daemon import WorkerStartError
from tests.support.scripted_model import Finish, Say, ScriptedModel, tokens
from tests.support.scripted_pops import Mishap, ScriptedPops, chat_job
from tests.support.serving import Served, serving
from tests.support.waiting import WaitUntil
from tests.support.working import make_worker, working

MODEL = "scripted-1B"

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


def job(**changes: Any) -> dict[str, Any]:
    return chat_job(model=MODEL, interval_seconds=0.1, **changes)


async def submitted(horde: Horde, wait_until: WaitUntil, popped: dict[str, Any]) -> dict[str, Any]:
    found = await wait_until(lambda: horde.server.submit_of(popped["id"]), description="the submit")
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("mishap", list(Mishap))
async def test_a_pop_without_an_answer_is_sent_again_under_its_id_so_that_no_job_is_stranded(
    horde: Horde, model: Model, wait_until: WaitUntil, mishap: Mishap
) -> None:
    model.server.play(tokens("Yes"))
    popped = job()
    horde.server.mishaps["pop"].append(mishap)
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, popped)
    assert horde.server.pops[0]["pop_id"] == horde.server.pops[1]["pop_id"]
    assert len(model.server.bodies) == 1


async def test_a_job_too_large_to_read_goes_back_and_the_next_one_is_served(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("Yes"))
    popped = job()
    horde.server.give(job(stop_sequence=["a" * 17 * 1024 * 1024]), popped)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, popped)
    assert horde.server.pops[0]["pop_id"] != horde.server.pops[1]["pop_id"]
    assert horde.server.pops[1]["running"] == []


async def test_each_answered_pop_is_followed_by_one_under_a_new_id(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("Yes"))
    jobs = [job(), job()]
    horde.server.give(*jobs)
    async with working(horde.url, model.url):
        for popped in jobs:
            await submitted(horde, wait_until, popped)
    ids = [pop["pop_id"] for pop in horde.server.pops]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("mishap", list(Mishap))
async def test_a_submit_without_an_answer_is_sent_again_and_counts_once(
    horde: Horde, model: Model, wait_until: WaitUntil, mishap: Mishap
) -> None:
    model.server.play(tokens("Yes"))
    popped, following = job(), job()
    horde.server.mishaps["submit"].append(mishap)
    horde.server.give(popped, following)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, popped)
        await submitted(horde, wait_until, following)
    assert [submit["id"] for submit in horde.server.submits] == [popped["id"], following["id"]]
    assert len(model.server.bodies) == 2


async def test_a_progress_post_whose_answer_was_lost_is_never_doubled(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([*(Say(f"{number} ") for number in range(50)), Finish()])
    popped = job(stream_progress=True)
    horde.server.mishaps["progress"].append(Mishap.LOST_AFTER)
    horde.server.give(popped)
    async with working(horde.url, model.url):
        reply = await submitted(horde, wait_until, popped)
    assert [post["seq"] for post in horde.server.posts_of(popped["id"])] == [1]
    assert reply["message"]["content"].startswith(horde.server.posted_text(popped["id"]))


@pytest.mark.rule("WRK-4")
async def test_a_refused_reply_is_followed_by_a_fault_that_says_so(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("Yes"))
    popped = job()
    horde.server.refusals.append((400, {"message": "Not JSON.", "rc": "ChatSubmitNonconformant"}))
    horde.server.give(popped)
    async with working(horde.url, model.url):
        assert (await submitted(horde, wait_until, popped))["fault_reason"] == "reply_refused"


@pytest.mark.parametrize("refusal", [(409, "DuplicateGen"), (404, "InvalidJobID")])
async def test_a_final_answer_to_a_submit_is_believed(
    horde: Horde, model: Model, wait_until: WaitUntil, refusal: tuple[int, str]
) -> None:
    model.server.play(tokens("Yes"))
    popped, following = job(), job()
    status, code = refusal
    horde.server.refusals.append((status, {"message": "Over.", "rc": code}))
    horde.server.give(popped, following)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, following)
    assert horde.server.submit_of(popped["id"]) is None


async def test_a_job_that_is_given_out_twice_is_served_once(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    model.server.play(tokens("Yes"))
    popped, following = job(), job()
    horde.server.give(popped, dict(popped), following)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, following)
    assert len(model.server.bodies) == 2


@pytest.mark.parametrize("code", ["InvalidAPIKey", "AnonForbiddenWorker", "NotOwner"])
async def test_a_horde_that_does_not_take_the_worker_ends_it(horde: Horde, model: Model, code: str) -> None:
    horde.server.pop_refusals.append((403, {"message": "Go away.", "rc": code}))
    with pytest.raises(WorkerStartError, match=code):
        await make_worker(horde.url, model.url).run()


async def test_a_refusal_that_may_pass_is_waited_out(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    model.server.play(tokens("Yes"))
    popped = job()
    horde.server.pop_refusals.append((403, {"message": "In maintenance.", "rc": "WorkerMaintenance"}))
    horde.server.pop_refusals.append((429, {"message": "Slower.", "rc": "TooManyPrompts"}))
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, popped)


async def test_a_horde_that_starts_after_the_worker_is_found(model: Model, wait_until: WaitUntil) -> None:
    model.server.play(tokens("Yes"))
    popped = job()
    pops = ScriptedPops()
    pops.give(popped)
    async with serving(ScriptedPops()) as url:
        port = int(url.rpartition(":")[2])
    async with working(url, model.url):
        await wait_until(lambda: model.server.listed, description="the model server to be probed")
        async with serving(pops, port=port):
            await wait_until(lambda: pops.submit_of(popped["id"]), description="the submit")


async def test_a_horde_that_answers_empty_at_once_is_not_hammered(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    async with working(horde.url, model.url, wait_seconds=0.0):
        await wait_until(lambda: len(horde.server.pops) >= 2, description="two pops")
        assert len(horde.server.pops) == 2
