"""The worker between a scripted Horde and a scripted model server, over real HTTP."""

import asyncio
from typing import Any

import pytest

from tests.support.scripted_model import Cut, Fail, Finish, Raw, Reason, Say, ScriptedModel, Stall, Step, tokens
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil
from tests.support.working import WORKER_KEY, working

MODEL = "scripted-1B"

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


def job(content: str = "Hello", **changes: Any) -> dict[str, Any]:
    return chat_job(content, model=MODEL, interval_seconds=0.1, **changes)


def fault(job_id: str, reason: str) -> dict[str, Any]:
    return {"id": job_id, "state": "faulted", "model_id": MODEL, "fault_reason": reason}


async def submitted(horde: Horde, wait_until: WaitUntil, popped: dict[str, Any]) -> dict[str, Any]:
    found = await wait_until(lambda: horde.server.submit_of(popped["id"]), description="the submit")
    assert isinstance(found, dict)
    return found


async def test_a_job_becomes_a_reply_with_what_the_backend_counted(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([Say("The sea"), Say(" is wide."), Finish("stop", prompt_tokens=11, completion_tokens=6)])
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url):
        assert await submitted(horde, wait_until, popped) == {
            "id": popped["id"],
            "model_id": MODEL,
            "message": {"role": "assistant", "content": "The sea is wide."},
            "finish_reason": "stop",
            "native_finish_reason": "stop",
            "prompt_tokens": 11,
            "completion_tokens": 6,
        }


@pytest.mark.rule("WRK-7")
async def test_a_pop_says_who_asks_and_what_it_can_do(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    async with working(horde.url, model.url, name="mine", threads=3):
        await wait_until(lambda: horde.server.pops, description="a pop")
    pop = horde.server.pops[0]
    assert pop.pop("pop_id")
    assert pop.pop("bridge_agent").startswith("horde-oai-worker:")
    assert pop == {
        "name": "mine",
        "models": [MODEL],
        "threads": 3,
        "max_length": 1024,
        "max_context_length": 469,
        "chat_jobs": True,
        "prompt_jobs": False,
        "model_id": MODEL,
        "chat_features": ["prompt_overflow_refused"],
        "chat_limits": {"max_context_length": 469, "max_length": 1024},
        "image_transports": [],
        "wait_seconds": 20.0,
        "running": [],
    }
    assert horde.server.headers["apikey"] == WORKER_KEY


@pytest.mark.rule("WRK-6")
async def test_every_sampling_value_reaches_the_backend(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    model.server.play(tokens("Yes"))
    popped = job(
        max_length=33,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.0,
        rep_pen=1.1,
        top_k=7,
        min_p=0.05,
        stop_sequence=["\n\n"],
    )
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, popped)
    assert model.server.bodies == [
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 33,
            "temperature": 0.5,
            "top_p": 0.9,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.1,
            "top_k": 7,
            "min_p": 0.05,
            "stop": ["\n\n"],
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ]


@pytest.mark.rule("WRK-1", "DLT-18")
async def test_live_text_is_posted_while_it_is_generated_and_is_the_start_of_the_reply(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    more = asyncio.Event()
    model.server.play([Reason("hm"), Say("The sea"), Stall(more), Say(" is wide."), Finish()])
    popped = job(stream_progress=True)
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await wait_until(lambda: horde.server.posted_text(popped["id"]) == "The sea", description="the text so far")
        assert horde.server.submits == []
        more.set()
        reply = await submitted(horde, wait_until, popped)
    posts = horde.server.posts_of(popped["id"])
    assert [post["seq"] for post in posts] == list(range(1, len(posts) + 1))
    assert reply["message"] == {"role": "assistant", "content": "The sea is wide.", "reasoning_content": "hm"}


@pytest.mark.rule("WRK-2")
async def test_a_job_that_wants_no_live_text_gets_none_posted(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("The sea is wide."))
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await submitted(horde, wait_until, popped)
    assert horde.server.posts == []


@pytest.mark.rule("WRK-3", "RSN-14")
async def test_a_think_block_that_the_limit_cut_leaves_an_empty_content(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([Say("<thi"), Say("nk>hm, so"), Finish("length")])
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url):
        reply = await submitted(horde, wait_until, popped)
    assert reply["message"] == {"role": "assistant", "content": "", "reasoning_content": "hm, so"}
    assert reply["finish_reason"] == "length"


@pytest.mark.rule("WRK-5")
async def test_a_cancelled_job_closes_the_backends_connection_and_is_never_submitted(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([Say("The sea"), Stall(asyncio.Event())])
    popped = job(stream_progress=True)
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await wait_until(lambda: horde.server.posts_of(popped["id"]), description="the first post")
        assert model.server.open_streams == 1
        horde.server.cancelled.add(popped["id"])
        await wait_until(lambda: model.server.open_streams == 0, description="the stream to be closed")
        model.server.play(tokens("Next"))
        model.server.scripts.popleft()
        following = job()
        horde.server.give(following)
        await submitted(horde, wait_until, following)
    assert horde.server.submit_of(popped["id"]) is None


@pytest.mark.rule("WRK-4")
@pytest.mark.parametrize(
    "script",
    [
        [Say("The"), Cut()],
        [Say("The")],
        [Fail(500)],
        [Raw(b"data: not json\n\n")],
        [Raw(b'data: {"error": {"type": "boom"}}\n\n')],
        [Raw(b"data: " + b"x" * 5_000_000)],
    ],
    ids=["cut", "no end", "500", "no JSON", "error event", "endless event"],
)
async def test_a_backend_that_fails_costs_one_fault_and_nothing_else(
    horde: Horde, model: Model, wait_until: WaitUntil, script: list[Step]
) -> None:
    model.server.play(script, tokens("Yes"))
    broken, following = job(), job()
    horde.server.give(broken, following)
    async with working(horde.url, model.url):
        assert await submitted(horde, wait_until, broken) == fault(broken["id"], "generation_error")
        assert (await submitted(horde, wait_until, following))["message"]["content"] == "Yes"


async def test_a_backend_that_falls_silent_is_given_up(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    model.server.play([Say("The"), Stall(asyncio.Event())])
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url, backend_stall_seconds=0.2):
        assert await submitted(horde, wait_until, popped) == fault(popped["id"], "generation_error")
        await wait_until(lambda: model.server.open_streams == 0, description="the stream to be closed")


@pytest.mark.rule("WRK-4", "CNF-5")
async def test_a_prompt_that_may_not_fit_is_refused_before_it_is_generated(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    popped = job("x" * 4000)
    horde.server.give(popped)
    async with working(horde.url, model.url):
        assert await submitted(horde, wait_until, popped) == fault(popped["id"], "prompt_overflow")
    assert model.server.bodies == []


async def test_a_backend_that_refuses_the_prompt_as_too_long_is_an_overflow(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([Fail(400, "exceed_context_size_error")])
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url):
        assert await submitted(horde, wait_until, popped) == fault(popped["id"], "prompt_overflow")


async def test_while_the_backend_is_away_no_job_is_taken_and_when_it_is_back_they_are(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("Yes"))
    broken, following = job(), job()
    async with working(horde.url, model.url):
        await wait_until(lambda: horde.server.pops, description="a pop")
        model.server.available = False
        horde.server.give(broken)
        assert await submitted(horde, wait_until, broken) == fault(broken["id"], "generation_error")
        await wait_until(lambda: horde.server.pops[-1]["chat_jobs"] is False, description="the worker to withdraw")
        horde.server.give(following)
        listed = model.server.listed
        await wait_until(lambda: model.server.listed > listed, description="a probe")
        assert horde.server.jobs
        model.server.available = True
        assert (await submitted(horde, wait_until, following))["message"]["content"] == "Yes"


async def test_a_reply_of_a_mebibyte_is_submitted_and_a_longer_one_is_faulted(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    longest = "\n" * 1024 * 1024
    model.server.play([Say(longest), Finish()], [Say(longest), Say("x"), Finish()])
    largest, larger = job(), job()
    horde.server.give(largest, larger)
    async with working(horde.url, model.url):
        assert (await submitted(horde, wait_until, largest))["message"]["content"] == longest
        assert await submitted(horde, wait_until, larger) == fault(larger["id"], "generation_error")


async def test_threads_bound_the_jobs_that_run_at_a_time(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()])
    jobs = [job() for _ in range(5)]
    horde.server.give(*jobs)
    async with working(horde.url, model.url, threads=2):
        await wait_until(lambda: model.server.open_streams == 2, description="two jobs")
        assert len(horde.server.jobs) == 3
        assert len(horde.server.pops) == 2
        assert horde.server.pops[1]["running"] == [jobs[0]["id"]]
        go_on.set()
        for popped in jobs:
            assert (await submitted(horde, wait_until, popped))["message"]["content"] == "The sea"


@pytest.mark.parametrize("change", [{"payload": None}, {"model": "other"}, {"chat": None}])
async def test_a_job_that_cannot_be_served_is_faulted_and_the_next_one_is_served(
    horde: Horde, model: Model, wait_until: WaitUntil, change: dict[str, Any]
) -> None:
    model.server.play(tokens("Yes"))
    unusable, following = job() | change, job()
    horde.server.give(unusable, following)
    async with working(horde.url, model.url):
        assert await submitted(horde, wait_until, unusable) == fault(unusable["id"], "generation_error")
        await submitted(horde, wait_until, following)


async def test_stopping_faults_what_does_not_finish_in_time_and_withdraws(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play([Say("The"), Stall(asyncio.Event())])
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url):
        await wait_until(lambda: model.server.open_streams, description="the stream to be opened")
    assert horde.server.submits == [fault(popped["id"], "generation_error")]
    assert horde.server.pops[-1]["chat_jobs"] is False
    assert horde.server.pops[-1]["running"] == [popped["id"]]
    await wait_until(lambda: model.server.open_streams == 0, description="the stream to be closed")


async def test_stopping_lets_a_running_job_finish(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()])
    popped = job()
    horde.server.give(popped)
    async with working(horde.url, model.url, drain_seconds=10.0) as daemon:
        await wait_until(lambda: model.server.open_streams, description="the stream to be opened")
        daemon.stop()
        await wait_until(lambda: horde.server.pops[-1]["chat_jobs"] is False, description="the worker to withdraw")
        go_on.set()
    assert [submit["message"]["content"] for submit in horde.server.submits] == ["The sea"]
