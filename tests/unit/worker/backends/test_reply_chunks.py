from typing import Any

import orjson
import pytest
from horde_sdk.worker.chat_declaration import ChatFinishReason, ChatUsage

from horde.worker.backends.base import (
    BackendError,
    GenerationEvent,
    GenerationFinished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
)
from horde.worker.backends.reply_chunks import ReplyAssembler


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def events_of(*chunks: object) -> list[GenerationEvent]:
    assembler = ReplyAssembler()
    events = [event for sent in chunks for event in assembler.feed(orjson.dumps(sent))]
    return [*events, *assembler.finish()]


def finished(*chunks: object) -> GenerationFinished:
    last = events_of(*chunks)[-1]
    assert isinstance(last, GenerationFinished)
    return last


def test_content_arrives_piece_by_piece_and_the_end_last() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    assert events_of(
        chunk(role="assistant", content=None), chunk(content="Hi"), chunk(content="!"), chunk("stop"), usage
    ) == [
        TextDelta("Hi"),
        TextDelta("!"),
        GenerationFinished(
            finish_reason=ChatFinishReason.STOP,
            native_finish_reason="stop",
            usage=ChatUsage(prompt_tokens=7, completion_tokens=2),
        ),
    ]


@pytest.mark.rule("WRK-3", "RSN-1")
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_in_a_field_of_its_own_is_kept_apart(key: str) -> None:
    events = events_of(chunk(**{key: "hm"}), chunk(content="<think>"), chunk("stop"))
    assert events[:2] == [ReasoningDelta("hm"), TextDelta("<think>")]


@pytest.mark.rule("WRK-3", "RSN-1")
def test_a_block_in_the_content_is_split_off() -> None:
    events = events_of(chunk(content="<thi"), chunk(content="nk>hm</think>"), chunk(content="\n\nYes"), chunk("stop"))
    assert events[:-1] == [ReasoningDelta("hm"), TextDelta("Yes")]


@pytest.mark.rule("WRK-3")
def test_reasoning_tokens_are_reported_when_the_server_counted_them() -> None:
    details = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert finished(chunk("stop"), {"usage": details}).usage == ChatUsage(completion_tokens=9, reasoning_tokens=4)


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("stop", ChatFinishReason.STOP),
        ("eos", ChatFinishReason.STOP),
        ("length", ChatFinishReason.LENGTH),
        ("max_tokens", ChatFinishReason.LENGTH),
        ("content_filter", ChatFinishReason.CONTENT_FILTER),
        ("tool_calls", ChatFinishReason.STOP),
    ],
)
def test_the_servers_word_is_kept_beside_the_hordes(native: str, reason: ChatFinishReason) -> None:
    last = finished(chunk(native, content="Hi"))
    assert (last.finish_reason, last.native_finish_reason) == (reason, native)


@pytest.mark.rule("WRK-8")
def test_a_long_word_of_the_server_is_cut_at_32_characters() -> None:
    assert finished(chunk("x" * 50)).native_finish_reason == "x" * 32


@pytest.mark.rule("WRK-8")
def test_a_tool_call_is_put_together_with_its_id_and_its_arguments_as_text() -> None:
    first = {"index": 0, "id": "call_7", "function": {"name": "weather", "arguments": '{"city":'}}
    second = {"index": 0, "function": {"arguments": '"Oslo"}'}}
    last = finished(chunk(tool_calls=[first]), chunk(tool_calls=[second]), chunk("tool_calls"))
    assert last.finish_reason is ChatFinishReason.TOOL_CALLS
    assert last.tool_calls == (ToolCall("call_7", "weather", '{"city":"Oslo"}'),)


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"[]",
        b"7",
        b'{"choices": [7]}',
        b'{"error": {"type": "boom", "message": "secret"}}',
        b'{"error": "x"}',
    ],
)
def test_what_is_no_chunk_is_an_error_that_repeats_no_text(data: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        list(ReplyAssembler().feed(data))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "sent",
    [{}, {"choices": None}, {"choices": []}, chunk(content=7), {"choices": [{"delta": "x"}]}, {"usage": "many"}],
)
def test_a_chunk_that_says_nothing_is_passed_over(sent: dict[str, Any]) -> None:
    assert events_of(sent) == [GenerationFinished(finish_reason=ChatFinishReason.STOP)]


@pytest.mark.parametrize("count", [-1, 2**31, True, 1.5, "7", None])
def test_a_token_count_that_is_none_is_not_reported(count: object) -> None:
    assert finished(chunk("stop"), {"usage": {"prompt_tokens": count}}).usage == ChatUsage()


def test_a_reply_is_ended_only_when_the_server_said_why() -> None:
    assembler = ReplyAssembler()
    list(assembler.feed(orjson.dumps(chunk(content="Hi"))))
    assert not assembler.ended
    list(assembler.feed(orjson.dumps(chunk("stop"))))
    assert assembler.ended
