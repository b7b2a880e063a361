"""Whole and streamed replies of the front over a scripted Horde: shapes, order of events, failures in a stream."""

from typing import Any

import pytest

from horde.oai.responses import ChatCompletionChunk, ChatCompletionResponse
from tests.support.front import chat_body, running_front
from tests.support.scripted_horde import MODEL, Answer, generation, status

CALL = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"q":1}'}}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}]


async def whole(reply: dict[str, Any], **body: Any) -> dict[str, Any]:
    """Return the completion of one request that this generation answers."""
    async with running_front() as front:
        front.horde.play(status("replied", reply))
        exchange = front.client.chat(chat_body(**body))
        assert await exchange.status() == 200
        completion = await exchange.json()
        assert isinstance(completion, dict)
        return completion


async def streamed(reply: dict[str, Any], **body: Any) -> list[Any]:
    """Return the payloads of one streamed request that this generation answers."""
    async with running_front() as front:
        front.horde.play(status("replied", reply))
        return await front.client.chat(chat_body(stream=True, **body)).chunks()


# A whole reply


@pytest.mark.rule("RES-1", "RES-2", "RES-9", "RES-15", "RES-22", "REQ-17")
async def test_a_whole_reply_has_every_documented_field() -> None:
    completion = await whole(generation())
    ChatCompletionResponse.model_validate(completion)
    request_id = completion["x_horde"]["request_id"]
    assert completion == {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": completion["created"],
        "model": MODEL,
        "system_fingerprint": completion["system_fingerprint"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there."},
                "logprobs": None,
                "finish_reason": "stop",
                "native_finish_reason": "eos",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16},
        "x_horde": {
            "request_id": request_id,
            "worker_id": "22222222-2222-4222-8222-222222222222",
            "worker_name": "A worker",
            "kudos": 3.1,
            "queue_wait_seconds": 1.2,
            "context_adjustments": None,
            "estimated_usage": False,
        },
    }


@pytest.mark.rule("RES-3", "RES-4", "RES-5", "TOO-11")
async def test_calls_without_text_have_null_content_and_come_as_the_worker_sent_them() -> None:
    completion = await whole(generation(None, tool_calls=[CALL], finish_reason="tool_calls"), tools=TOOLS)
    choice = completion["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.rule("RES-3", "RES-10")
async def test_an_empty_reply_has_an_empty_string_and_a_notice() -> None:
    completion = await whole(generation(""))
    assert completion["choices"][0]["message"] == {"role": "assistant", "content": ""}
    assert completion["x_horde"]["notice"]


@pytest.mark.rule("RES-6", "RES-24", "STR-24")
async def test_a_finish_reason_outside_openais_set_becomes_stop() -> None:
    completion = await whole(generation(finish_reason="eos_token"))
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["system_fingerprint"].startswith("fp_")
    assert len(completion["system_fingerprint"]) == 13


@pytest.mark.rule("RES-25")
async def test_the_fingerprint_is_null_without_a_worker() -> None:
    assert (await whole(generation(worker_id=None)))["system_fingerprint"] is None


@pytest.mark.rule("RES-26", "DEV-4")
async def test_the_fingerprint_changes_with_the_worker_and_not_with_anything_else() -> None:
    first, same, other = [
        (await whole(generation(**more)))["system_fingerprint"]
        for more in ({}, {"worker_name": "Renamed", "kudos": 9}, {"worker_id": "another"})
    ]
    assert first == same != other


@pytest.mark.rule("RES-17", "RES-18", "RSN-2", "DEV-9")
async def test_reasoning_is_returned_beside_the_content_unless_hidden() -> None:
    reply = generation(reasoning_content="Let me think.", reasoning_tokens=5)
    message = (await whole(reply))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello there.", "reasoning_content": "Let me think."}
    hidden = await whole(reply, horde={"include_reasoning": False})
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert hidden["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}


@pytest.mark.rule("RES-19", "RSN-5")
async def test_reasoning_tokens_are_absent_when_no_worker_counted() -> None:
    assert "completion_tokens_details" not in (await whole(generation()))["usage"]


@pytest.mark.rule("RES-21")
async def test_counts_that_no_worker_reported_are_estimated_and_said_to_be() -> None:
    completion = await whole(generation("12345678", prompt_tokens=None, completion_tokens=None))
    assert completion["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert completion["x_horde"]["estimated_usage"] is True


@pytest.mark.rule("RES-23")
async def test_without_a_served_model_the_requested_one_stands_in() -> None:
    assert (await whole(generation(model=None)))["model"] == MODEL
    assert (await whole(generation(model=None), model=None, models=["b", "c"]))["model"] == "b"


@pytest.mark.rule("RES-22", "REQ-33")
async def test_under_models_the_one_that_served_is_named() -> None:
    assert (await whole(generation(model="c"), model=None, models=["b", "c"]))["model"] == "c"


@pytest.mark.rule("RES-11", "CTX-6")
async def test_context_adjustments_pass_through_unchanged() -> None:
    entries = [{"from": 2048, "to": 1024, "reason": "worker_max_length"}, {"reason": "new", "other": [1]}]
    async with running_front() as front:
        front.horde.play(status("replied", context_adjustments=entries))
        completion = await front.client.chat(chat_body()).json()
    assert completion["x_horde"]["context_adjustments"] == entries


# A streamed reply


@pytest.mark.rule("STR-1", "STR-5", "RTY-7")
async def test_a_stream_has_its_headers() -> None:
    async with running_front() as front:
        exchange = front.client.chat(chat_body(stream=True))
        headers = await exchange.headers()
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert headers["x-should-retry"] == "false"
        chunks = await exchange.chunks()
    assert headers["x-request-id"] == chunks[-2]["x_horde"]["request_id"]


@pytest.mark.rule("STR-11", "STR-13", "STR-15", "STR-16", "STR-17", "STR-21", "DEV-6")
async def test_a_text_reply_is_role_content_finish_usage_and_the_end() -> None:
    chunks = await streamed(generation(), stream_options={"include_usage": True})
    assert chunks[-1] == "[DONE]"
    role, content, finish, usage = chunks[:-1]
    assert role["choices"] == [{"index": 0, "delta": {"role": "assistant"}, "logprobs": None, "finish_reason": None}]
    assert content["choices"][0]["delta"] == {"content": "Hello there."}
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert finish["choices"][0]["native_finish_reason"] == "eos"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}


@pytest.mark.rule("STR-16", "STR-18", "STR-19", "STR-20", "RES-27")
async def test_without_include_usage_there_are_three_chunks_of_one_id_and_fingerprint() -> None:
    *chunks, _ = await streamed(generation())
    assert len(chunks) == 3
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["system_fingerprint"] for chunk in chunks}) == 1
    assert chunks[-1]["model"] == MODEL
    assert chunks[-1]["x_horde"]["request_id"] in chunks[0]["id"]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)


@pytest.mark.rule("STR-12", "RSN-3")
async def test_reasoning_comes_before_the_content_and_only_when_it_is_wanted() -> None:
    reply = generation(reasoning_content="Let me think.")
    deltas = [chunk["choices"][0]["delta"] for chunk in (await streamed(reply))[:-1]]
    assert deltas[1:3] == [{"reasoning_content": "Let me think."}, {"content": "Hello there."}]
    hidden = [
        chunk["choices"][0]["delta"] for chunk in (await streamed(reply, horde={"include_reasoning": False}))[:-1]
    ]
    assert hidden == [{"role": "assistant"}, {"content": "Hello there."}, {}]


@pytest.mark.rule("STR-14", "STR-23", "DEV-5")
async def test_calls_come_whole_in_one_chunk_without_content() -> None:
    other = {"id": "call_2", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
    reply = generation("Calling.", tool_calls=[CALL, other], finish_reason="tool_calls")
    deltas = [chunk["choices"][0]["delta"] for chunk in (await streamed(reply, tools=TOOLS))[:-1]]
    assert deltas == [
        {"role": "assistant"},
        {"content": "Calling."},
        {"tool_calls": [{"index": 0, **CALL}, {"index": 1, **other}]},
        {},
    ]


@pytest.mark.rule("STR-13")
async def test_a_reply_without_text_has_no_content_chunk() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in (await streamed(generation("")))[:-1]]
    assert deltas == [{"role": "assistant"}, {}]


@pytest.mark.rule("STR-8", "STR-9", "STR-10")
async def test_a_waiting_stream_is_kept_alive_by_comments_that_say_where_it_stands() -> None:
    async with running_front(keepalive_seconds=0.01) as front:
        front.horde.play(*[status("queued", queue_position=7)] * 3, status("replied"))
        events = [event async for event in front.client.chat(chat_body(stream=True)).events()]
    comments = [event for event in events if event.startswith(":")]
    assert comments[0] == ": horde queue_position=7 wait_time=42"
    assert events.index(comments[-1]) < next(i for i, event in enumerate(events) if "assistant" in event)


@pytest.mark.rule("STR-2", "STR-3", "NEW-6")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_at_the_first_read_is_the_same_http_error_streamed_or_not(*, stream: bool) -> None:
    reason = {"kind": "declaration_gap", "missing_declarations": ["seed"], "exceeded_limits": []}
    async with running_front() as front:
        front.horde.play(status("impossible", impossible_reason=reason))
        exchange = front.client.chat(chat_body(stream=stream, seed=1))
        assert await exchange.status() == 404
        headers = await exchange.headers()
        error = (await exchange.json())["error"]
        assert error["code"] == "no_worker_supports_features"
        assert error["metadata"] == {"request_id": headers["x-request-id"]}
        assert headers["content-type"] == "application/json"
        assert headers["x-should-retry"] == "false"
        assert front.horde.cancelled == [headers["x-request-id"]]


@pytest.mark.rule("STR-4", "STR-6", "STR-25", "ERR-35", "DLT-32")
async def test_a_failure_after_the_headers_is_one_error_event_and_the_end() -> None:
    async with running_front() as front:
        fault = {"rc": "ChatWorkerFault", "message": "The worker could not fit the prompt into its context."}
        front.horde.play(status("queued"), status("processing"), status("faulted", fault=fault))
        exchange = front.client.chat(chat_body(stream=True))
        assert await exchange.status() == 200
        chunks = await exchange.chunks()
    assert chunks[1:] == ["[DONE]"]
    assert set(chunks[0]) == {"error"}
    assert chunks[0]["error"]["code"] == "ChatRequestFaulted"
    assert chunks[0]["error"]["metadata"]["rc"] == "ChatWorkerFault"


@pytest.mark.rule("NEW-5", "STR-7")
async def test_nobody_eligible_after_the_grace_ends_an_open_stream_with_the_interval_in_metadata() -> None:
    async with running_front() as front:
        front.horde.play(status("impossible"))
        exchange = front.client.chat(chat_body(stream=True))
        assert await exchange.status() == 200
        chunks = await exchange.chunks()
        assert chunks[0]["error"]["code"] == "no_eligible_worker"
        assert chunks[0]["error"]["metadata"]["retry_after"] == 30
        assert len(front.horde.cancelled) == 1


@pytest.mark.rule("RTY-5", "REQ-61", "STR-3")
async def test_a_refusal_before_the_submit_is_json_also_for_a_stream_and_may_be_retried() -> None:
    async with running_front() as front:
        exchange = front.client.chat(chat_body(stream=True, temperature=2.5))
        assert await exchange.status() == 400
        headers = await exchange.headers()
        assert headers["content-type"] == "application/json"
        assert "x-should-retry" not in headers
        assert front.horde.calls == []


# What is sent to the Horde


@pytest.mark.rule("GEN-3", "REQ-11", "REQ-15", "ATT-1", "AUT-1")
async def test_the_native_body_holds_what_the_client_sent_under_native_names() -> None:
    async with running_front() as front:
        exchange = front.client.chat(
            chat_body(
                max_tokens=64,
                temperature=0,
                stop="END",
                seed=7,
                reasoning_effort="none",
                user="u",
                metadata={"a": "b"},
                stream=False,
                horde={"context_fit": "grow", "max_context_length": 4096, "include_reasoning": False},
            ),
            headers={"Authorization": "Bearer key", "X-Title": "An app", "User-Agent": "ua/1"},
        )
        assert await exchange.status() == 200
        body = front.horde.bodies[0]
        headers = front.horde.calls[0].headers
    assert len(body.pop("operation_key")) == 36
    assert body == {
        "messages": [{"role": "user", "content": "Hi"}],
        "models": [MODEL],
        "params": {
            "temperature": 0,
            "seed": 7,
            "reasoning_effort": "none",
            "max_length": 64,
            "max_context_length": 4096,
            "stop_sequence": ["END"],
        },
        "context_fit": "grow",
    }
    assert headers["apikey"] == "key"
    assert headers["client-agent"].startswith("An app:")
    assert headers["client-agent"].endswith(":ua/1 via horde-oai-front")


@pytest.mark.rule("DLT-5")
async def test_without_redis_no_live_text_is_asked_for() -> None:
    async with running_front() as front:
        await front.client.chat(chat_body(stream=True)).chunks()
        assert "stream" not in front.horde.bodies[0]


@pytest.mark.rule("SUB-9", "ERR-6")
async def test_a_refusal_at_submit_is_passed_on_and_nothing_is_cancelled() -> None:
    async with running_front() as front:
        front.horde.submits = [Answer(403, {"message": "No kudos.", "rc": "KudosUpfront"})]
        exchange = front.client.chat(chat_body())
        assert await exchange.status() == 403
        assert "x-should-retry" not in await exchange.headers()
        assert (await exchange.json())["error"]["code"] == "KudosUpfront"
        assert [call.method for call in front.horde.calls] == ["POST"]
