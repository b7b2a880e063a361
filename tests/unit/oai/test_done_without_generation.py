"""A status that says done and shows no reply (rules DWG)."""

import pytest

from tests.support.front import chat_body, running_front
from tests.support.scripted_horde import status


@pytest.mark.rule("DWG-2", "DWG-3", "DWG-5", "CAN-3")
async def test_done_without_a_generation_is_read_again_then_cancelled_and_a_502() -> None:
    async with running_front() as front:
        front.horde.play(status("cancelled"))
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 502
        assert (await exchange.json())["error"]["code"] == "ChatRequestNoGeneration"
        assert len(front.horde.of("GET", "/status/")) == 2
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("DWG-2")
async def test_a_reply_that_shows_at_the_recheck_is_delivered() -> None:
    async with running_front() as front:
        front.horde.play(status("cancelled"), status("replied"))
        assert await front.client.chat(chat_body()).status() == 200
        assert front.horde.cancelled == []


@pytest.mark.rule("DWG-1")
async def test_while_a_job_is_counted_it_is_unfinished() -> None:
    async with running_front() as front:
        front.horde.play(*[status("cancelled", processing=1)] * 4, status("replied"))
        assert await front.client.chat(chat_body()).status() == 200


@pytest.mark.rule("DWG-6", "STR-6")
async def test_on_an_open_stream_it_is_the_error_event() -> None:
    async with running_front() as front:
        front.horde.play(status("queued"), status("cancelled"))
        exchange = front.client.chat(chat_body(stream=True))
        assert await exchange.status() == 200
        chunks = await exchange.chunks()
    assert chunks[0]["error"]["code"] == "ChatRequestNoGeneration"
    assert chunks[1:] == ["[DONE]"]
