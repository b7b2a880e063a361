"""An unmodified OpenAI client talks to a Horde with a real model."""

import asyncio
import json
import re

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageFunctionToolCall

from tests.support.waiting import WaitUntil
from tests.support.whole_horde import WholeHorde

QUESTION = "Name three animals that live in the sea."


def client_of(horde: WholeHorde, api_key: str | None = None) -> AsyncOpenAI:
    key = horde.printed("API key") if api_key is None else api_key
    return AsyncOpenAI(base_url=horde.printed("base URL"), api_key=key, max_retries=0, timeout=90)


def text_of(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


async def native_status(horde: WholeHorde, completion_id: str) -> dict[str, object]:
    native = re.search(r"native Horde on (\S+)", horde.output)
    assert native
    url = f"{native[1]}/v2/generate/chat/status/{completion_id.removeprefix('chatcmpl-')}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"apikey": horde.printed("API key")}) as got,
    ):
        return dict(await got.json())


def final_text(status: dict[str, object]) -> str:
    generations = status["generations"]
    assert isinstance(generations, list)
    return str(generations[0]["message"]["content"])


async def test_the_model_is_listed(whole_horde: WholeHorde) -> None:
    async with client_of(whole_horde) as client:
        listed = [model.id async for model in client.models.list()]
    assert listed == [whole_horde.printed("model")] == ["SmolLM2-135M-Instruct"]


async def test_a_reply_comes_whole(whole_horde: WholeHorde) -> None:
    async with client_of(whole_horde) as client:
        completion = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=40,
        )
    assert completion.choices[0].message.content
    assert completion.choices[0].finish_reason in {"stop", "length"}
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0


async def test_a_stream_is_live_and_gives_the_text_of_the_reply(whole_horde: WholeHorde) -> None:
    async with client_of(whole_horde) as client:
        stream = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": "Write a long story about a lighthouse."}],
            max_tokens=160,
            stream=True,
        )
        text, request_id, early = "", "", None
        async for chunk in stream:
            if text_of(chunk) and not text:
                request_id = chunk.id
                early = await native_status(whole_horde, request_id)
            text += text_of(chunk)
    assert early is not None
    assert early["processing"] == 1, "the first text came while the model was still generating"
    assert text == final_text(await native_status(whole_horde, request_id))


async def test_twenty_streams_at_once_each_get_their_own_text(whole_horde: WholeHorde) -> None:
    async def ask(client: AsyncOpenAI, number: int) -> None:
        stream = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": f"Count upwards from {number}."}],
            max_tokens=30,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
        (request_id,) = {chunk.id for chunk in chunks}
        assert "".join(map(text_of, chunks)) == final_text(await native_status(whole_horde, request_id))
        assert chunks[-1].choices[0].finish_reason in {"stop", "length"}

    async with client_of(whole_horde) as client, asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(ask(client, number * 100), name=f"test - client {number}")
    for part in ("front", "native", "worker"):
        assert "ERROR" not in whole_horde.log(part)


async def test_the_model_stops_when_the_client_leaves(whole_horde: WholeHorde, wait_until: WaitUntil) -> None:
    model_server = whole_horde.log("model_server").strip()

    async def is_generating() -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{model_server}/slots") as response:
            return any(slot["is_processing"] for slot in await response.json())

    async def is_idle() -> bool:
        return not await is_generating()

    async with client_of(whole_horde) as client:
        stream = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=[{"role": "user", "content": "Write a long story about a lighthouse."}],
            max_tokens=1000,
            stream=True,
            extra_body={"temperature": 0},
        )
        async for chunk in stream:
            if text_of(chunk):
                break
        assert await is_generating()
        await stream.close()
        await wait_until(is_idle, description="the model to stop", seconds=8)


async def test_a_model_that_nobody_knows_is_not_found(whole_horde: WholeHorde) -> None:
    async with client_of(whole_horde) as client:
        with pytest.raises(openai.NotFoundError) as refusal:
            await client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "Hi"}])
    assert refusal.value.code == "model_not_found"


async def test_a_key_that_nobody_has_is_refused(whole_horde: WholeHorde) -> None:
    async with client_of(whole_horde, "sk-nobody") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(
                model="SmolLM2-135M-Instruct",
                messages=[{"role": "user", "content": "Hi"}],
            )


@pytest.mark.rule("CNF-3", "TOO-11", "TOO-19")
async def test_a_forced_function_is_called_by_a_model_without_tools(whole_horde: WholeHorde) -> None:
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius"]}},
        "required": ["unit"],
    }
    async with client_of(whole_horde) as client:
        reply = await client.chat.completions.create(
            model=whole_horde.printed("model"),
            messages=[{"role": "user", "content": "How warm is it?"}],
            tools=[{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            max_tokens=100,
        )
    message = reply.choices[0].message
    assert message.content is None
    assert message.tool_calls
    assert isinstance(message.tool_calls[0], ChatCompletionMessageFunctionToolCall)
    assert json.loads(message.tool_calls[0].function.arguments) == {"unit": "celsius"}


@pytest.mark.rule("CNF-4", "FMT-11")
async def test_a_strict_schema_is_satisfied_by_a_small_model(whole_horde: WholeHorde) -> None:
    schema = {
        "type": "object",
        "properties": {"sky": {"type": "string", "enum": ["clear", "grey"]}},
        "required": ["sky"],
        "additionalProperties": False,
    }
    async with client_of(whole_horde) as client:
        reply = await client.chat.completions.create(
            model=whole_horde.printed("model"),
            messages=[{"role": "user", "content": "What is the sky like?"}],
            response_format={"type": "json_schema", "json_schema": {"name": "sky", "strict": True, "schema": schema}},
            max_tokens=100,
        )
    assert json.loads(reply.choices[0].message.content or "")["sky"] in {"clear", "grey"}
