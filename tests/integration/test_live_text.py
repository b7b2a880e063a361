"""Live text over the real Horde and the real stream store: it flows while the worker generates, and stays true."""

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.integration.conftest import Chain
from tests.support.native_server import MODEL
from tests.support.waiting import wait_until


def text_of(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


@pytest.mark.rule("DLT-3", "DLT-4", "DLT-16", "DLT-18", "DLT-26", "WAI-2")
async def test_text_reaches_the_client_while_the_worker_still_generates(chain: Chain) -> None:
    await chain.worker.come_online()
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        job = await chain.worker.pop_job(wait_seconds=10)
        assert job["payload"]["stream_progress"] is True
        await chain.worker.progress(job["id"], 1, "Once upon ")
        chunks = aiter(stream)
        received = ""
        while received != "Once upon ":
            received += text_of(await anext(chunks))
        # Only now does the worker finish: what was read was live.
        await chain.worker.progress(job["id"], 2, "a time")
        await chain.worker.reply(job, "Once upon a time there was.")
        rest = [chunk async for chunk in chunks]
    assert received + "".join(map(text_of, rest)) == "Once upon a time there was."
    assert rest[-1].choices[0].finish_reason == "stop"


@pytest.mark.rule("DLT-29", "DLT-35", "DLT-40", "STR-25", "NAT-10")
async def test_an_attempt_that_ends_after_text_was_shown_ends_the_stream(chain: Chain) -> None:
    await chain.worker.come_online()
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        job = await chain.worker.pop_job(wait_seconds=10)
        await chain.worker.progress(job["id"], 1, "Once")
        chunks = aiter(stream)
        while not text_of(await anext(chunks)):
            pass
        await chain.worker.fault(job)
        with pytest.raises(openai.APIError) as caught:
            async for _ in chunks:
                pass
    assert caught.value.code == "ChatStreamDiverged"


@pytest.mark.rule("CAN-1", "CAN-12", "WRK-5", "CAN-11")
async def test_a_client_that_leaves_stops_the_worker(chain: Chain) -> None:
    await chain.worker.come_online()
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        job = await chain.worker.pop_job(wait_seconds=10)
        await chain.worker.progress(job["id"], 1, "Once")
        await stream.close()

        async def cancelled() -> bool:
            answer = await chain.worker.progress(job["id"])
            return bool(answer.body["cancelled"])

        await wait_until(cancelled, description="the worker to be told")


@pytest.mark.rule("GEN-7", "DLT-7")
async def test_many_streams_at_once_each_get_exactly_their_own_text(chain: Chain) -> None:
    await chain.worker.come_online()
    count = 20

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"question {number}"}], stream=True
        )
        return "".join([text_of(chunk) async for chunk in stream])

    async def work() -> None:
        job = await chain.worker.pop_job(wait_seconds=20)
        question = job["payload"]["messages"][0]["content"]
        await chain.worker.progress(job["id"], 1, f"The answer to {question}")
        await chain.worker.progress(job["id"], 2, " is itself.")
        await chain.worker.reply(job, f"The answer to {question} is itself.")

    async with (
        openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client,
        asyncio.TaskGroup() as group,
    ):
        answers = [group.create_task(ask(client, number)) for number in range(count)]
        for _ in range(count):
            group.create_task(work())
    expected = [f"The answer to question {number} is itself." for number in range(count)]
    assert [answer.result() for answer in answers] == expected
