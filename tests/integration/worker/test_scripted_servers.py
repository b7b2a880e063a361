"""The scripted model server and the scripted Horde do what their descriptions say."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.support.scripted_model import Cut, Fail, Finish, Reason, Say, ScriptedModel, Stall, tokens
from tests.support.scripted_pops import Mishap, ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]

POP = {"pop_id": "p", "chat_jobs": True, "wait_seconds": 0}


async def post(url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return answer.status, await answer.read()


async def call(horde: Horde, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{horde.url}/api/v2/generate/{path}", json=body) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_script_is_played_step_by_step_and_recorded(model: Model) -> None:
    model.server.play([Reason("hm"), Say("Yes"), Finish("length", 7, 8)])
    status, stream = await post(f"{model.url}/chat/completions", {"model": "m"})
    assert status == 200
    assert stream.split(b"\n\n") == [
        b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}',
        b'data: {"choices":[{"index":0,"delta":{"content":"Yes"},"finish_reason":null}]}',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}',
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":8}}',
        b"data: [DONE]",
        b"",
    ]
    assert model.server.bodies == [{"model": "m"}]


async def test_each_completion_takes_the_next_script_and_the_last_one_stays(model: Model) -> None:
    model.server.play([Fail(500, "boom")], tokens("Yes"))
    url = f"{model.url}/chat/completions"
    assert [(await post(url, {}))[0] for _ in range(3)] == [500, 200, 200]


async def test_a_cut_ends_the_connection_in_the_middle(model: Model) -> None:
    model.server.play([Say("The"), Cut()])
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(f"{model.url}/chat/completions", {})


async def test_a_client_that_leaves_a_stalled_stream_closes_it(model: Model, wait_until: WaitUntil) -> None:
    model.server.play([Say("The"), Stall(asyncio.Event())])
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{model.url}/chat/completions", json={})
        await answer.content.readany()
        assert model.server.open_streams == 1
        answer.close()
    await wait_until(lambda: model.server.open_streams == 0, description="the stream to be closed")


async def test_the_model_list_can_be_taken_away(model: Model) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{model.url}/models") as answer:
            assert await answer.json() == {
                "object": "list",
                "data": [{"id": "scripted-1B", "object": "model", "max_model_len": 4096}],
            }
        model.server.available = False
        async with session.get(f"{model.url}/models") as answer:
            assert answer.status == 503


async def test_a_pop_takes_one_job_and_its_id_keeps_it(horde: Horde) -> None:
    first, second = chat_job(), chat_job()
    horde.server.give(first, second)
    assert await call(horde, "text/pop", POP) == (200, first)
    assert await call(horde, "text/pop", POP) == (200, first)
    assert await call(horde, "text/pop", POP | {"pop_id": "q"}) == (200, second)
    assert await call(horde, "text/pop", POP | {"pop_id": "r"}) == (200, {"id": None, "skipped": {}})


async def test_a_held_pop_gets_the_job_that_comes(horde: Horde, wait_until: WaitUntil) -> None:
    held = asyncio.create_task(call(horde, "text/pop", POP | {"wait_seconds": 20}))
    await wait_until(lambda: horde.server.pops, description="the pop")
    job = chat_job()
    horde.server.give(job)
    assert await held == (200, job)


async def test_a_second_submit_is_a_duplicate_and_a_post_after_it_is_cancelled(horde: Horde) -> None:
    assert await call(horde, "chat/progress", {"id": "j", "seq": 1}) == (200, {"cancelled": False})
    assert await call(horde, "text/submit", {"id": "j"}) == (200, {"reward": 1.5})
    assert (await call(horde, "text/submit", {"id": "j"}))[0] == 409
    assert await call(horde, "chat/progress", {"id": "j", "seq": 2}) == (200, {"cancelled": True})
    assert [post["seq"] for post in horde.server.posts] == [1]


@pytest.mark.parametrize(("mishap", "taken"), [(Mishap.LOST_BEFORE, 0), (Mishap.LOST_AFTER, 1)])
async def test_a_lost_answer_comes_before_or_after_the_effect(horde: Horde, mishap: Mishap, taken: int) -> None:
    horde.server.mishaps["submit"].append(mishap)
    with pytest.raises(aiohttp.ClientPayloadError):
        await call(horde, "text/submit", {"id": "j"})
    assert len(horde.server.submits) == taken


async def test_a_refusal_and_a_page_have_no_effect(horde: Horde) -> None:
    horde.server.mishaps["submit"].extend([Mishap.REFUSED_EARLY, Mishap.NOT_JSON])
    assert (await call(horde, "text/submit", {"id": "j"}))[0] == 503
    status, page = await post(f"{horde.url}/api/v2/generate/text/submit", {"id": "j"})
    assert (status, page[:6]) == (200, b"<html>")
    assert horde.server.submits == []
