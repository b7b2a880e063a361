"""The official OpenAI SDK against the front over a real Horde: whole, streamed, tools, schemas, errors, models."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.integration.conftest import Chain
from tests.support.native_server import MODEL, pop_body

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string"}},
                "required": ["q"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"q": "x"}'}}
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def sdk(chain: Chain) -> AsyncIterator[openai.AsyncOpenAI]:
    """An SDK client of the front."""
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        yield client


@asynccontextmanager
async def serving_jobs(chain: Chain, *replies: dict[str, Any]) -> AsyncIterator[list[dict[str, Any]]]:
    """A worker that answers the next jobs with these messages; yields the jobs it got."""
    await chain.worker.come_online()
    jobs: list[dict[str, Any]] = []

    async def work() -> None:
        for reply in replies:
            message = dict(reply)
            finish = message.pop("finish_reason", "stop")
            answer = await chain.worker.call("POST", "/v2/generate/text/pop", pop_body(wait_seconds=20))
            job = answer.body
            jobs.append(job)
            submit = {
                "id": job["id"],
                "model_id": job["model"],
                "message": {"role": "assistant", "content": None, **message},
                "finish_reason": finish,
            }
            answer = await chain.worker.call("POST", "/v2/generate/text/submit", submit)
            assert answer.status == 200, answer

    async with asyncio.TaskGroup() as group:
        group.create_task(work(), name="test - worker")
        yield jobs


@pytest.mark.rule("GEN-6", "GEN-7", "ERR-36")
async def test_create_returns_the_reply_with_what_the_horde_knows(chain: Chain) -> None:
    async with sdk(chain) as client, serving_jobs(chain, {"content": "Hello."}):
        completion = await client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert completion.choices[0].message.content == "Hello."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.model_extra is not None
    assert completion.model_extra["x_horde"]["worker_name"] == "worker-1"
    ChatCompletion.model_validate(completion.model_dump(), strict=False)


@pytest.mark.rule("RSN-4", "RES-18")
async def test_reasoning_is_in_the_sdks_extra_field(chain: Chain) -> None:
    async with sdk(chain) as client, serving_jobs(chain, {"content": "4", "reasoning_content": "2 + 2"}):
        completion = await client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert completion.choices[0].message.model_extra == {"reasoning_content": "2 + 2"}


@pytest.mark.rule("STR-22", "STR-16")
async def test_a_stream_accumulates_to_the_same_message(chain: Chain) -> None:
    async with (
        sdk(chain) as client,
        serving_jobs(chain, {"content": "Hello."}),
        client.chat.completions.stream(
            model=MODEL, messages=QUESTION, stream_options={"include_usage": True}
        ) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello."
    assert final.usage is not None


@pytest.mark.rule("TOO-16", "TOO-17", "STR-22", "MSG-13")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_round_replays_the_returned_message(chain: Chain, *, streamed: bool) -> None:
    replies = ({"tool_calls": [CALL], "finish_reason": "tool_calls"}, {"content": "Found it."})
    async with sdk(chain) as client, serving_jobs(chain, *replies) as jobs:
        if streamed:
            async with client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=TOOLS) as stream:
                message: Any = (await stream.get_final_completion()).choices[0].message
        else:
            message = (
                (await client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)).choices[0].message
            )
        assert message.tool_calls[0].function.name == "lookup"
        history = [*QUESTION, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "R"}]
        second = await client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
    assert second.choices[0].message.content == "Found it."
    assert second.choices[0].message.tool_calls is None
    replayed = jobs[1]["payload"]["messages"]
    assert replayed[1] == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert [message["role"] for message in replayed] == ["user", "assistant", "tool"]


class Answer(BaseModel):
    """A structured answer."""

    word: str
    length: int


@pytest.mark.rule("FMT-1", "FMT-4", "FMT-11")
async def test_parse_returns_the_structured_answer(chain: Chain) -> None:
    async with sdk(chain) as client, serving_jobs(chain, {"content": '{"word": "five", "length": 4}'}) as jobs:
        completion = await client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Answer)
    assert completion.choices[0].message.parsed == Answer(word="five", length=4)
    assert jobs[0]["payload"]["response_format"]["json_schema"]["schema"]["additionalProperties"] is False


@pytest.mark.rule("REQ-19", "ERR-36")
async def test_a_refused_key_raises_bad_request_with_its_param(chain: Chain) -> None:
    async with sdk(chain) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=QUESTION, logit_bias={"50256": -100})
    assert (caught.value.code, caught.value.param) == ("UnsupportedChatParameter", "logit_bias")
    assert caught.value.request_id


@pytest.mark.rule("REQ-31", "ERR-14")
async def test_an_unknown_model_raises_not_found(chain: Chain) -> None:
    async with sdk(chain) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="no/such", messages=QUESTION)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.rule("NEW-1", "NEW-2", "GEN-10")
async def test_a_known_model_without_a_worker_raises_and_the_sdk_does_not_retry(chain: Chain) -> None:
    await chain.worker.come_online()
    await chain.native.make_time_pass(600)
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert caught.value.code == "no_eligible_worker"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert await chain.native.pool.fetchval("SELECT count(*) FROM chat_requests") == 0


@pytest.mark.rule("ERR-11", "AUT-1")
async def test_an_unknown_key_raises_an_authentication_error(chain: Chain) -> None:
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key="not-a-key", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert caught.value.code == "InvalidAPIKey"


@pytest.mark.rule("MDL-1", "MDL-2", "MDL-13", "MDL-16")
async def test_the_model_list_shows_what_is_online(chain: Chain) -> None:
    await chain.worker.come_online()
    async with sdk(chain) as client:
        models = [model async for model in client.models.list()]
        one = await client.models.retrieve(MODEL)
    assert [model.id for model in models] == [MODEL] == [one.id]
    assert models[0].model_extra is not None
    assert models[0].model_extra["x_horde"]["workers"] == 1


@pytest.mark.rule("GEN-9")
async def test_raw_responses_carry_the_request_id_in_their_header(chain: Chain) -> None:
    async with sdk(chain) as client, serving_jobs(chain, {"content": "Hello."}):
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION)
        completion = raw.parse()
    assert completion.id == f"chatcmpl-{raw.headers['x-request-id']}"


@pytest.mark.rule("GEN-6", "RES-1", "STR-22")
async def test_the_synchronous_client_works_alike_typed_raw_and_streamed(chain: Chain) -> None:
    def ask() -> tuple[str | None, str, str]:
        with openai.OpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
            typed = client.chat.completions.create(model=MODEL, messages=QUESTION)
            raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION)
            stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
            text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
            return typed.choices[0].message.content, raw.text, text

    async with serving_jobs(chain, *[{"content": "Hello."}] * 3):
        typed, raw, text = await asyncio.to_thread(ask)
    assert typed == text == "Hello."
    assert '"content":"Hello."' in raw
