"""A worker that is killed in the middle of a reply: front, Horde, database, stream store and two worker programs."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.integration.conftest import Chain
from tests.support.scripted_model import Say, ScriptedModel, Stall, Step, tokens
from tests.support.serving import serving
from tests.support.waiting import wait_until

MODEL = "scripted-1B"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]
_START_SECONDS = 30.0


@contextlib.asynccontextmanager
async def worker_program(chain: Chain, name: str, script: list[Step]) -> AsyncIterator["WorkerProgram"]:
    model = ScriptedModel()
    model.play(script)
    async with serving(model) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "horde.worker",
            env={
                **os.environ,
                "HORDE_WORKER_HORDE_URL": chain.native.api_url,
                "HORDE_WORKER_API_KEY": str(chain.worker.api_key),
                "HORDE_WORKER_BACKEND_URL": f"{url}/v1",
                "HORDE_WORKER_NAME": name,
            },
        )
        try:
            await wait_until(lambda: is_online(chain, name), description=f"{name} online", seconds=_START_SECONDS)
            yield WorkerProgram(process, model)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


class WorkerProgram:
    """A worker as a process of its own, and its model server."""

    def __init__(self, process: asyncio.subprocess.Process, model: ScriptedModel) -> None:
        self._process = process
        self._model = model

    async def has_job(self) -> None:
        """Wait until it generates."""
        await wait_until(lambda: self._model.open_streams == 1, description="the job")

    async def kill(self) -> None:
        """Kill it without a word to anybody."""
        self._process.kill()
        await self._process.wait()


async def is_online(chain: Chain, name: str) -> bool:
    return bool(await chain.native.pool.fetchval("SELECT count(*) FROM workers WHERE name = $1", name))


def hanging() -> list[Step]:
    return [Say("Once upon a time"), Stall(asyncio.Event())]


@pytest.mark.rule("DLT-29", "DLT-35")
async def test_a_stream_whose_worker_was_killed_ends_and_says_that_it_diverged(chain: Chain) -> None:
    async with (
        openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client,
        worker_program(chain, "first", hanging()) as first,
    ):
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        chunks = aiter(stream)
        received = ""
        while received != "Once upon a time":
            chunk = await anext(chunks)
            received += "".join(choice.delta.content or "" for choice in chunk.choices)
        await first.kill()
        # In place of waiting for the lease to run out.
        await chain.native.make_time_pass(60)
        with pytest.raises(openai.APIError) as caught:
            async for _ in chunks:
                pass
    assert caught.value.code == "ChatStreamDiverged"


@pytest.mark.rule("DLT-6", "WRK-2")
async def test_a_buffered_reply_whose_worker_was_killed_comes_whole_from_another(chain: Chain) -> None:
    async with (
        openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client,
        worker_program(chain, "first", hanging()) as first,
    ):
        asking = asyncio.create_task(
            client.chat.completions.create(model=MODEL, messages=QUESTION),
            name="test - client",
        )
        await first.has_job()
        async with worker_program(chain, "second", tokens("The end.")):
            await first.kill()
            await chain.native.make_time_pass(600)
            async with asyncio.timeout(_START_SECONDS):
                completion = await asking
    assert completion.choices[0].message.content == "The end."
