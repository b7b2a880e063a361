"""What the front produces, as the OpenAI SDK reads it: its own models, and streams that add up to the whole answer."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from horde.oai.mapping import ReplyContext, build_completion
from horde.oai.native_status import NativeStatus
from horde.oai.responses import ChatCompletionChunk as OwnChunk
from horde.oai.responses import ChatCompletionResponse
from horde.oai.sse import DONE_EVENT, build_completion_events
from tests.support.scripted_horde import generation, status

TEXTS = st.text(max_size=40)
CALLS = st.lists(
    st.fixed_dictionaries({"id": st.text(min_size=1, max_size=8), "name": st.text(min_size=1), "arguments": TEXTS}),
    max_size=3,
    unique_by=lambda call: call["id"],
)
COUNTS = st.none() | st.integers(0, 2**31)


@st.composite
def statuses(draw: st.DrawFn) -> dict[str, Any]:
    """A status that shows any reply a worker may submit."""
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in draw(CALLS)
    ]
    more: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if draw(st.booleans()):
        more["reasoning_content"] = draw(TEXTS)
    content = draw(st.none() | TEXTS) if calls else draw(TEXTS)
    reply = generation(
        content,
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter", "odd", None])),
        model=draw(st.none() | st.text(min_size=1, max_size=9)),
        worker_id=draw(st.none() | st.text(min_size=1, max_size=9)),
        prompt_tokens=draw(COUNTS),
        completion_tokens=draw(COUNTS),
        reasoning_tokens=draw(COUNTS),
        **more,
    )
    return status("replied", reply)


def completion_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the completion of a status body."""
    read = NativeStatus.read(body)
    assert read.generation is not None
    context = ReplyContext("id", "a/model", prompt_tokens=5, created=1_700_000_000, include_reasoning=True)
    return build_completion(context, read.generation, read)


@given(statuses())
def test_every_whole_answer_fits_the_sdks_models_and_ours(body: dict[str, Any]) -> None:
    completion = completion_of(body)
    ChatCompletionResponse.model_validate(completion)
    ChatCompletion.model_validate(completion)


@given(statuses())
def test_a_stream_accumulates_in_the_sdk_to_the_whole_answer(body: dict[str, Any]) -> None:
    completion = completion_of(body)
    *events, last = build_completion_events(completion, include_usage=True)
    assert last == DONE_EVENT
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    reasoning = ""
    for event in events:
        payload = orjson.loads(event.removeprefix(b"data: "))
        OwnChunk.model_validate(payload)
        chunk = ChatCompletionChunk.model_validate(payload)
        for choice in chunk.choices:
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
        state.handle_chunk(chunk)
    whole = completion["choices"][0]
    final = state.current_completion_snapshot  # The final one is refused by the SDK for a reply cut at its limit.
    message = final.choices[0].message
    assert (message.content or "") == (whole["message"]["content"] or "")
    assert reasoning == whole["message"].get("reasoning_content", "")
    calls = [
        {
            "id": call.id,
            "type": call.type,
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    assert calls == whole["message"].get("tool_calls", [])
    assert final.choices[0].finish_reason == whole["finish_reason"]
    assert final.model == completion["model"]
    assert final.usage is not None
    assert final.usage.total_tokens == completion["usage"]["total_tokens"]
