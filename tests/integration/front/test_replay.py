"""What the official SDK holds of a reply, sent back as history: the Horde gets the plain messages."""

from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.front import Front, chat_body, running_front
from tests.support.requests import function_tool, tool_answer
from tests.support.scripted_horde import Answer, generation, status

USER = {"role": "user", "content": "What is it?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"q":1}'}}
PLAIN = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOLS = [function_tool(parameters={"type": "object", "properties": {"q": {"type": "integer"}}})]


def plays_a_tool_round(front: Front) -> None:
    called = generation(None, tool_calls=[CALL], finish_reason="tool_calls", reasoning_content="Hm.")
    front.horde.statuses = [Answer(body=status("replied", called)), Answer(body=status("replied", generation("42.")))]


async def completed(front: Front, messages: list[Any]) -> ChatCompletion:
    body = chat_body(messages=messages, tools=TOOLS)
    return ChatCompletion.model_validate(await front.client.chat(body).json())


async def accumulated(front: Front, messages: list[Any]) -> Any:
    """Return the message that the SDK makes of a stream, as ``get_final_completion()`` does."""
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for chunk in await front.client.chat(chat_body(messages=messages, tools=TOOLS, stream=True)).chunks():
        if chunk != "[DONE]":
            state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.get_final_completion().choices[0].message


async def check_follow_up(front: Front, replayed: dict[str, Any]) -> None:
    follow_up = await completed(front, [USER, replayed, tool_answer("call_1")])
    assert front.horde.bodies[1]["messages"] == [USER, PLAIN, tool_answer("call_1")]
    assert follow_up.choices[0].finish_reason == "stop"
    assert follow_up.choices[0].message.content == "42."
    assert follow_up.choices[0].message.tool_calls is None


@pytest.mark.rule("TOO-16", "TOO-17", "TOO-11", "MSG-13", "RSN-15")
@pytest.mark.parametrize("options", [{}, {"exclude_none": True}, {"exclude_unset": True}, {"by_alias": True}])
async def test_a_message_of_the_sdk_is_replayed_whole(options: dict[str, Any]) -> None:
    async with running_front() as front:
        plays_a_tool_round(front)
        message = (await completed(front, [USER])).choices[0].message
        assert message.tool_calls is not None
        assert message.tool_calls[0].type == "function"
        assert message.tool_calls[0].function.name == "lookup"
        await check_follow_up(front, message.model_dump(**options))


@pytest.mark.rule("TOO-16", "MSG-13", "MSG-14")
async def test_a_message_that_the_sdk_accumulated_from_a_stream_is_replayed() -> None:
    async with running_front() as front:
        plays_a_tool_round(front)
        message = (await accumulated(front, [USER])).model_dump()
        assert {"refusal", "parsed"} <= set(message)
        assert "parsed_arguments" in message["tool_calls"][0]["function"]
        await check_follow_up(front, message)


@pytest.mark.rule("CTX-9", "CTX-6")
async def test_a_limit_over_the_cards_is_served_and_its_lowering_is_told() -> None:
    lowered = {"from": 4096, "to": 1024, "reason": "worker_max_length"}
    async with running_front() as front:
        front.horde.play(status("replied", context_adjustments=[lowered]))
        (card,) = (await front.client.request("GET", "/v1/models").json())["data"]
        completion = await front.client.chat(chat_body(max_tokens=4096)).json()
        assert front.horde.bodies[0]["params"] == {"max_length": 4096}
    assert completion["x_horde"]["context_adjustments"] == [lowered]
    assert lowered["to"] == card["top_provider"]["max_completion_tokens"]


@pytest.mark.rule("CTX-10", "ERR-8")
async def test_a_declaration_that_shrank_after_the_submit_is_told_at_the_key_that_was_sent() -> None:
    gap = {"kind": "declaration_gap", "missing_declarations": [], "exceeded_limits": ["max_length"]}
    async with running_front() as front:
        front.horde.play(status("impossible", impossible_reason=gap))
        exchange = front.client.chat(chat_body(max_tokens=4096))
        assert await exchange.status() == 400
        error = (await exchange.json())["error"]
    assert (error["code"], error["param"]) == ("no_worker_supports_limit", "max_tokens")
