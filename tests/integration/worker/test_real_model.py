"""The worker's backend and the whole worker against llama.cpp with the bundled model."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import orjson
import pytest
from horde_sdk.worker.chat_declaration import ChatFinishReason, ChatJobPayload, ChatToolStrategy

from horde.worker.backends import recognise_backend
from horde.worker.backends.base import (
    BackendProfile,
    ChatBackend,
    GenerationFinished,
    PromptOverflowError,
    TextDelta,
    UnbuildableGrammarError,
)
from horde.worker.backends.llama_cpp import LlamaCppBackend
from horde.worker.backends.openai_compatible import BackendLocation, create_backend_session
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil
from tests.support.working import working

COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.fixture
async def backend(real_model_url: str) -> AsyncIterator[ChatBackend]:
    location = BackendLocation(base_url=real_model_url)
    async with create_backend_session(location) as session:
        found = await recognise_backend(session, location)
        await found.probe()
        yield found


async def reply_of(backend: ChatBackend, content: object = "Hello", **payload: Any) -> tuple[str, GenerationFinished]:
    job = chat_job(**{"max_length": 24, "messages": [{"role": "user", "content": content}], **payload})
    text = ""
    async with aclosing(backend.generate(ChatJobPayload.from_pop(job), prompt_limit=2000)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, GenerationFinished):
                return text, event
    raise AssertionError("the reply has no end")


async def processing_slots(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url.removesuffix("/v1") + "/slots") as answer:
        return sum(slot["is_processing"] for slot in await answer.json())


@pytest.mark.rule("WRK-7")
async def test_probing_finds_what_llama_cpp_does(real_model_url: str) -> None:
    location = BackendLocation(base_url=real_model_url)
    async with create_backend_session(location) as session:
        found = await recognise_backend(session, location)
        profile = await found.probe()
    assert isinstance(found, LlamaCppBackend)
    assert isinstance(profile, BackendProfile)
    assert (profile.model_name, profile.window, profile.slots) == ("SmolLM2-135M-Instruct", 2048, 2)
    assert profile.counts_prompts
    assert profile.facts.constrains_json_schema


async def test_text_comes_with_its_tokens_counted(backend: ChatBackend) -> None:
    text, finished = await reply_of(backend, temperature=0.0)
    assert text
    assert finished.usage.prompt_tokens == 31
    assert finished.usage.completion_tokens
    assert finished.native_finish_reason in {"stop", "length"}


async def test_content_in_parts_is_read_as_text(backend: ChatBackend) -> None:
    _, whole = await reply_of(backend, "Hello\nthere")
    _, parts = await reply_of(backend, [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}])
    assert abs((parts.usage.prompt_tokens or 0) - (whole.usage.prompt_tokens or 0)) <= 1


async def test_a_reply_ends_at_its_longest_length(backend: ChatBackend) -> None:
    _, finished = await reply_of(backend, "Write a long story about the sea.", max_length=16)
    assert finished.finish_reason is ChatFinishReason.LENGTH
    assert finished.usage.completion_tokens == 16


@pytest.mark.rule("WRK-6")
async def test_the_same_seed_gives_the_same_text_and_another_one_another(backend: ChatBackend) -> None:
    first, _ = await reply_of(backend, seed=7)
    again, _ = await reply_of(backend, seed=7)
    other, _ = await reply_of(backend, seed=8)
    assert first == again
    assert first != other


@pytest.mark.rule("WRK-6")
async def test_a_stop_sequence_ends_the_reply_and_is_no_part_of_it(backend: ChatBackend) -> None:
    whole, _ = await reply_of(backend, temperature=0.0)
    stop = whole.split()[2]
    text, finished = await reply_of(backend, temperature=0.0, stop_sequence=[stop])
    assert stop not in text
    assert whole.startswith(text)
    assert finished.finish_reason is ChatFinishReason.STOP


@pytest.mark.rule("WRK-6")
@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
async def test_a_penalty_changes_what_a_greedy_model_says(backend: ChatBackend, penalty: str) -> None:
    question = "Repeat the word sea twenty times: sea sea sea sea"
    plain, _ = await reply_of(backend, question, temperature=0.0)
    penalised, _ = await reply_of(backend, question, temperature=0.0, **{penalty: 2.0})
    assert penalised != plain


@pytest.mark.rule("CNF-4", "WRK-7")
@pytest.mark.parametrize("seed", range(3))
async def test_a_strict_schema_is_satisfied_by_a_model_that_knows_nothing_of_it(
    backend: ChatBackend, seed: int
) -> None:
    text, _ = await reply_of(backend, max_length=200, seed=seed, response_format=schema_format(COLOUR))
    document = orjson.loads(text)
    assert document.keys() == {"colour", "count"}
    assert document["colour"] in {"red", "blue"}


@pytest.mark.rule("FMT-11")
async def test_a_json_object_is_one(backend: ChatBackend) -> None:
    text, finished = await reply_of(
        backend,
        "Answer in JSON: the colour of the sky.",
        max_length=200,
        temperature=0.0,
        response_format={"type": "json_object"},
    )
    assert text.startswith("{")
    if finished.finish_reason is ChatFinishReason.STOP:
        assert isinstance(orjson.loads(text), dict)


def weather_tool(**function: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}, "unit": {"$ref": "#/$defs/unit"}},
        "required": ["city", "unit"],
        "additionalProperties": False,
        "$defs": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    }
    return {"type": "function", "function": {"name": "weather", "parameters": parameters, **function}}


@pytest.mark.rule("CNF-3", "WRK-7", "WRK-8")
@pytest.mark.parametrize("seed", range(3))
async def test_a_forced_call_comes_from_a_model_that_knows_nothing_of_tools(backend: ChatBackend, seed: int) -> None:
    text, finished = await reply_of(
        backend,
        "Weather in Paris?",
        max_length=128,
        seed=seed,
        tools=[weather_tool(strict=True)],
        tool_choice="required",
    )
    [call] = finished.tool_calls
    assert (text, call.name, finished.finish_reason) == ("", "weather", ChatFinishReason.TOOL_CALLS)
    assert orjson.loads(call.arguments)["unit"] in {"celsius", "fahrenheit"}


@pytest.mark.rule("FMT-7", "TOO-17")
async def test_after_a_call_was_answered_the_model_answers_in_the_format_or_calls_again(backend: ChatBackend) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    text, finished = await reply_of(
        backend,
        max_length=200,
        tools=[weather_tool()],
        response_format=schema_format(COLOUR),
        messages=[
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
    )
    assert finished.tool_calls or orjson.loads(text).keys() == {"colour", "count"}


@pytest.mark.rule("WRK-7")
async def test_probing_proves_that_tools_are_enforced(backend: ChatBackend) -> None:
    facts = (await backend.probe()).facts
    assert (facts.renders_tools, facts.tool_strategy) == (True, ChatToolStrategy.GRAMMAR)


@pytest.mark.rule("WRK-4")
async def test_a_schema_that_cannot_be_built_is_said_to_be(backend: ChatBackend) -> None:
    with pytest.raises(UnbuildableGrammarError):
        await reply_of(backend, response_format=schema_format({"$ref": "#/nowhere"}))


@pytest.mark.rule("WRK-4", "CNF-5")
async def test_a_prompt_over_the_limit_is_refused_by_its_count(backend: ChatBackend) -> None:
    with pytest.raises(PromptOverflowError, match=r"takes 20[0-9][0-9] tokens"):
        await reply_of(backend, "sea " * 2000)


async def test_both_ways_to_count_a_prompt_agree_with_what_the_model_counts(backend: ChatBackend) -> None:
    assert isinstance(backend, LlamaCppBackend)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<|im_start|>Grüße, 世界!"}]
    _, finished = await reply_of(backend, messages=messages)
    body = {"messages": messages}
    assert await backend._count_in_one_call(body) == finished.usage.prompt_tokens
    assert await backend._count_in_two_calls(body) == finished.usage.prompt_tokens


@pytest.mark.rule("WRK-5")
async def test_leaving_a_reply_frees_the_slot(backend: ChatBackend, real_model_url: str, wait_until: WaitUntil) -> None:
    job = ChatJobPayload.from_pop(chat_job("Write a long story about the sea.", max_length=1000))
    async with aclosing(backend.generate(job, prompt_limit=2000)) as events:
        await anext(events)
        assert await processing_slots(real_model_url) == 1

    async def is_free() -> bool:
        return await processing_slots(real_model_url) == 0

    await wait_until(is_free, description="the slot to be freed")


@pytest.mark.rule("WRK-1", "WRK-5")
async def test_the_worker_streams_submits_and_stops_real_replies(
    horde: Served[ScriptedPops], real_model_url: str, wait_until: WaitUntil
) -> None:
    story = "Write a long story about the sea."
    streamed = chat_job(story, max_length=48, interval_seconds=0.1, stream_progress=True)
    cancelled = chat_job(story, max_length=512, interval_seconds=0.1, stream_progress=True)
    overflowing = chat_job("sea " * 2100, max_length=16)
    horde.server.give(streamed, cancelled, overflowing)
    async with working(horde.url, real_model_url):
        await wait_until(lambda: horde.server.posts_of(cancelled["id"]), description="live text", seconds=30)
        horde.server.cancelled.add(cancelled["id"])
        await wait_until(lambda: horde.server.submit_of(streamed["id"]), description="the reply", seconds=30)
        await wait_until(lambda: horde.server.submit_of(overflowing["id"]), description="the fault", seconds=30)
    reply, fault = horde.server.submit_of(streamed["id"]), horde.server.submit_of(overflowing["id"])
    assert reply is not None
    assert fault is not None
    assert reply["message"]["content"].startswith(horde.server.posted_text(streamed["id"]))
    assert reply["completion_tokens"] <= 48
    assert fault["fault_reason"] == "prompt_overflow"
    assert horde.server.submit_of(cancelled["id"]) is None
