from typing import Any

import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatWorkerLimits
from horde_sdk.worker.chat_declaration import (
    ChatFaultReason,
    ChatFinishReason,
    ChatWorkerDeclaration,
    build_chat_fault_submit,
    build_chat_reply_submit,
)

from horde.native.errors import ValidationFailedError
from horde.native.wire import FaultBody, PopBody, ProgressBody, ReplyBody, SubmitBody, parse_body

_SUBMIT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "models": ["m"]}
_ID = "7b0e8d9c-5a2f-4a51-9f0e-0d6b6a3b1c11"


def _failing(body: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationFailedError) as failed:
        parse_body(SubmitBody, body)
    return list(failed.value.errors)


@pytest.mark.rule("SMP-4", "CNF-1")
def test_defaults_of_a_submit() -> None:
    body = parse_body(SubmitBody, _SUBMIT)
    assert (body.params.max_length, body.conformance, body.context_fit) == (512, "strict", "truncate_oldest")
    assert (body.stream, body.slow_workers, body.trusted_workers, body.dry_run) == (False, True, False, False)


def test_null_counts_as_omitted() -> None:
    nulls = dict.fromkeys(["params", "tools", "conformance", "workers", "stream", "operation_key", "max_kudos"])
    assert parse_body(SubmitBody, {**_SUBMIT, **nulls}) == parse_body(SubmitBody, _SUBMIT)
    assert parse_body(SubmitBody, {**_SUBMIT, "params": {"max_length": None}}).params.max_length == 512


def test_failing_fields_come_in_the_order_of_the_request_without_the_prefix_of_params() -> None:
    assert _failing({"stream": "yes", **_SUBMIT, "params": {"top_p": 2, "max_length": 1}, "conformance": "so so"}) == [
        "stream",
        "top_p",
        "max_length",
        "conformance",
    ]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"models": ["m", ""]}, "models[1]"),
        ({"models": ["a\0b"]}, "models[0]"),
        ({"models": list("abcdef")}, "models"),
        ({"operation_key": "no"}, "operation_key"),
        ({"workers": {"only": ["no"]}}, "workers.only[0]"),
        ({"max_kudos": 0}, "max_kudos"),
        ({"params": {"seed": 2**64}}, "seed"),
        ({"params": {"seed": 1e300}}, "seed"),
        ({"params": {"reasoning_effort": "huge"}}, "reasoning_effort"),
        ({"params": {"stop_sequence": ["a"] * 5}}, "stop_sequence"),
        ({"params": {"stop_sequence": ["a", "b" * 1025]}}, "stop_sequence[1]"),
        ({"params": []}, "params"),
        ({"unknown": 1}, "unknown"),
        ({"horde": {}}, "horde"),
    ],
)
def test_each_wrong_field_of_a_submit_is_named(change: dict[str, Any], path: str) -> None:
    assert _failing({**_SUBMIT, **change}) == [path]


_CROWD = {f"key {number}": 1 for number in range(20_000)}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (_CROWD, "body"),
        ({"params": _CROWD}, "params"),
        ({"messages": [{"role": "user", "content": "a", **_CROWD}]}, "messages"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, **_CROWD}}}, None),
    ],
    ids=["top", "params", "message", "format"],
)
@pytest.mark.rule("NAT-2")
def test_an_object_with_a_crowd_of_unknown_keys_is_one_error(change: dict[str, Any], path: str | None) -> None:
    assert _failing({**_SUBMIT, **change}) == [path or "response_format"]


def test_a_schema_may_have_as_many_keys_as_its_client_likes() -> None:
    schema = {"type": "object", "properties": {name: {} for name in _CROWD}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    parse_body(SubmitBody, {**_SUBMIT, "tools": [tool]})


@pytest.mark.rule("NAT-2")
def test_at_most_fifty_fields_are_answered_the_first_of_the_request() -> None:
    unknown = [f"key {number}" for number in range(60)]
    assert _failing({**_SUBMIT, **dict.fromkeys(unknown, 1)}) == unknown[:50]


@pytest.mark.rule("NAT-14")
def test_a_pop_reads_what_the_sdk_declares() -> None:
    limits = ChatWorkerLimits(max_context_length=4096, max_length=512, tools_max_temperature=0.5)
    declared = ChatWorkerDeclaration(model_id="m", limits=limits).to_pop_fields()
    body = parse_body(PopBody, {"name": "w", "models": ["m"], "softprompts": [], **declared})
    assert body.chat_limits is not None
    assert (body.model_id, body.chat_limits.max_length, body.chat_limits.tools_max_temperature) == ("m", 512, 0.5)


@pytest.mark.parametrize("left_out", ["model_id", "chat_limits"])
def test_a_half_declaration_is_refused(left_out: str) -> None:
    body = {
        "name": "w",
        "models": ["m"],
        "chat_jobs": True,
        "model_id": "m",
        "chat_limits": {"max_context_length": 1, "max_length": 1},
    }
    del body[left_out]
    with pytest.raises(ValidationFailedError):
        parse_body(PopBody, body)


def test_a_reply_and_a_fault_are_read_as_the_sdk_builds_them() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": None, "tool_calls": [call], "reasoning_content": "Hm."}
    built = build_chat_reply_submit(_ID, "m", message, ChatFinishReason.TOOL_CALLS, native_finish_reason="eos")
    body = parse_body(ReplyBody, built)
    assert body.message.as_stored() == {"role": "assistant", **message}
    assert body.message.texts() == ["", "Hm.", "f", "{}"]
    fault = parse_body(FaultBody, build_chat_fault_submit(_ID, "m", ChatFaultReason.PROMPT_OVERFLOW))
    assert fault.fault_reason == "prompt_overflow"


def test_a_reply_without_text_and_calls_is_refused() -> None:
    body = {"id": _ID, "model_id": "m", "message": {"content": None}, "finish_reason": "stop"}
    with pytest.raises(ValidationFailedError):
        parse_body(ReplyBody, body)


def test_a_post_with_text_is_counted_and_a_heartbeat_is_not() -> None:
    assert parse_body(ProgressBody, {"id": _ID}).seq is None
    with pytest.raises(ValidationFailedError):
        parse_body(ProgressBody, {"id": _ID, "text": "x"})
