"""What is refused or dropped before validation, each step alone and all in their order."""

import copy
from typing import Any

import pytest
from hypothesis import given

from horde.oai.schema import (
    DEFAULT_NO_OP_PARAMETERS,
    SUPPORTED_MESSAGE_KEYS,
    drop_default_no_ops,
    drop_unknown_nested_keys,
    find_refused_parameter,
)
from tests.support.front import chat_body
from tests.support.json_values import NEARLY_REQUESTS
from tests.support.requests import assistant_calls, forwarded, function_tool, read_refusal, refused_at, tool_answer

UNSUPPORTED = "UnsupportedChatParameter"
USER = {"role": "user", "content": "Q"}


def refused(body: dict[str, Any]) -> tuple[str, str] | None:
    violation = find_refused_parameter(body)
    return None if violation is None else (violation.code, violation.param)


# Top-level keys


@pytest.mark.rule("REQ-4", "REQ-18", "REQ-62", "DEV-3")
@pytest.mark.parametrize(
    "key",
    [
        "logit_bias", "functions", "function_call", "audio", "modalities", "prediction", "web_search_options",
        "rep_pen", "top_k", "min_p", "reasoning", "extra_body", "operation_key", "dry_run", "stream_", "Model", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [None, 1, {"a": 1}])
def test_a_key_that_is_not_served_is_refused_by_its_name_whatever_it_holds(key: str, value: Any) -> None:
    assert refused_at(**{key: value}) == (UNSUPPORTED, key)


@pytest.mark.rule("REQ-19")
def test_a_logit_bias_is_refused_as_documented() -> None:
    error = read_refusal(chat_body(logit_bias={"50256": -100})).envelope()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", UNSUPPORTED, "logit_bias")


@pytest.mark.rule("REQ-8", "REQ-16")
@pytest.mark.parametrize(
    ("key", "value"),
    [("logprobs", False), ("top_logprobs", 0), ("store", False), ("service_tier", "auto"), ("service_tier", "default")],
)
def test_a_key_that_says_nothing_at_its_default_is_dropped(key: str, value: Any) -> None:
    assert forwarded(**{key: value}) == forwarded()


@pytest.mark.rule("REQ-16")
@pytest.mark.parametrize("key", sorted(DEFAULT_NO_OP_PARAMETERS))
def test_a_null_no_op_key_counts_as_left_out(key: str) -> None:
    assert forwarded(**{key: None}) == forwarded()


@pytest.mark.rule("REQ-5", "REQ-16", "REQ-18")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logprobs", True), ("logprobs", 0), ("top_logprobs", 5), ("top_logprobs", False), ("store", True),
        ("store", 0), ("service_tier", "flex"), ("service_tier", ""), ("service_tier", ["auto"]), ("store", {}),
    ],
)  # fmt: skip
def test_a_no_op_key_at_another_value_is_refused(key: str, value: Any) -> None:
    assert refused_at(**{key: value}) == (UNSUPPORTED, key)


@pytest.mark.rule("REQ-14")
@pytest.mark.parametrize(
    "defaults",
    [
        {"tools": []}, {"tools": None}, {"tool_choice": None}, {"parallel_tool_calls": None},
        {"response_format": {"type": "text"}}, {"response_format": None},
    ],
)  # fmt: skip
def test_what_stock_clients_send_at_its_default_is_not_forwarded(defaults: dict[str, Any]) -> None:
    assert forwarded(**defaults) == forwarded()


@pytest.mark.rule("REQ-3")
@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 9}, {"messages": []}, {"model": None}, {"tool_choice": "auto"}, {"horde": {"further": 1}}],
)
def test_an_unknown_key_is_reported_before_whatever_else_is_wrong(wrong: dict[str, Any]) -> None:
    assert refused_at(min_p=0.1, **wrong) == (UNSUPPORTED, "min_p")


# Roles and parts


@pytest.mark.rule("REQ-6", "MSG-15", "MSG-18")
@pytest.mark.parametrize("role", ["function", "model", "User", ""])
def test_a_role_that_is_not_served_is_refused_by_its_path(role: str) -> None:
    messages = [USER, {"role": role, "content": 7, "name": "f"}]
    assert refused_at(messages=messages, temperature=9) == (UNSUPPORTED, "messages[1].role")


@pytest.mark.rule("REQ-7", "MSG-16")
@pytest.mark.parametrize("kind", ["input_audio", "file", "refusal", ""])
def test_a_part_that_is_not_served_is_refused_by_its_path_and_type(kind: str) -> None:
    content = [{"type": "text", "text": "Q"}, {"type": kind, kind: {}}]
    assert refused_at(messages=[{"role": "user", "content": content}]) == (
        UNSUPPORTED,
        f"messages[0].content[1].type={kind}",
    )


@pytest.mark.rule("MSG-17", "IMG-8")
@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
def test_a_picture_is_a_users_alone(role: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    messages = [USER, {"role": role, "content": content}]
    assert refused_at(messages=messages) == (UNSUPPORTED, "messages[1].content[0].type=image_url")


@pytest.mark.rule("MSG-9")
@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
@pytest.mark.parametrize("calls", [[], [{}], "x"])
def test_calls_are_an_assistants_alone(role: str, calls: Any) -> None:
    messages = [USER, {"role": role, "content": "Q", "tool_calls": calls}]
    assert refused_at(messages=messages) == (UNSUPPORTED, "messages[1].tool_calls")


def test_null_calls_count_as_none_on_any_message() -> None:
    assert forwarded(messages=[USER | {"tool_calls": None}])["messages"] == [USER]


# Keys inside messages, tools and the tool choice


@pytest.mark.rule("MSG-7", "MSG-2", "MSG-3", "MSG-4", "MSG-6", "MSG-8", "REQ-9")
@pytest.mark.parametrize("role", sorted(SUPPORTED_MESSAGE_KEYS))
def test_a_message_keeps_the_keys_of_its_role_and_no_other(role: str) -> None:
    everything: dict[str, Any] = {
        "role": role, "content": "Q", "name": "n", "tool_call_id": "a", "refusal": None, "audio": {}, "annotations": [],
        "function_call": None, "parsed": {"a": 1}, "reasoning_content": "Hm.", "usage": 1,
    }  # fmt: skip
    if role == "assistant":
        everything |= {"tool_calls": assistant_calls("a")["tool_calls"]}
    message = drop_unknown_nested_keys({"messages": [everything]})["messages"][0]
    assert set(message) == SUPPORTED_MESSAGE_KEYS[role]


@pytest.mark.rule("MSG-14", "RSN-15")
def test_reasoning_sent_back_is_dropped_and_inside_content_it_is_text() -> None:
    messages = [{"role": "assistant", "content": "<think>Hm.</think>A", "reasoning_content": "Hm."}, USER]
    assert forwarded(messages=messages)["messages"] == [{"role": "assistant", "content": "<think>Hm.</think>A"}, USER]


@pytest.mark.rule("MSG-13", "MSG-10", "TOO-16")
def test_a_reply_as_the_sdk_accumulates_it_is_replayed_as_the_plain_message() -> None:
    accumulated = {
        "content": None, "refusal": None, "role": "assistant", "annotations": None, "audio": None,
        "function_call": None, "parsed": None, "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "a", "index": 0, "type": "function",
                "function": {"name": "lookup", "arguments": "{}", "parsed_arguments": {"q": 1}},
            }
        ],
    }  # fmt: skip
    messages = [USER, accumulated, tool_answer("a")]
    assert forwarded(messages=messages, tools=[function_tool()])["messages"] == [
        USER,
        assistant_calls("a"),
        tool_answer("a"),
    ]


@pytest.mark.rule("MSG-5")
def test_content_left_out_beside_calls_is_forwarded_as_null() -> None:
    calls = assistant_calls("a")
    del calls["content"]
    assert forwarded(messages=[calls, tool_answer("a")])["messages"] == [assistant_calls("a"), tool_answer("a")]


@pytest.mark.rule("MSG-11", "REQ-9")
def test_a_part_keeps_its_own_keys_and_no_other() -> None:
    url = {"url": "https://example.org/a.png", "detail": "low"}
    content = [
        {"type": "text", "text": "Q", "cache_control": {"type": "ephemeral"}, "image_url": url},
        {"type": "image_url", "image_url": url | {"format": "png"}, "text": "x"},
    ]
    assert forwarded(messages=[{"role": "user", "content": content}])["messages"][0]["content"] == [
        {"type": "text", "text": "Q"},
        {"type": "image_url", "image_url": url},
    ]


@pytest.mark.rule("TOO-3", "TOO-4", "REQ-9", "REQ-13")
def test_a_tool_keeps_its_keys_and_its_schema_as_it_came() -> None:
    schema = {"type": "object", "properties": {"index": {"x-vendor": [1.5, None], "default": None}}, "further": None}
    kept = function_tool(description="d", parameters=schema, strict=False)
    sent = kept | {"id": 1, "function": kept["function"] | {"returns": {}, "cache_control": {}}}
    assert forwarded(tools=[sent])["tools"] == [kept]


@pytest.mark.rule("TOO-6", "REQ-9", "TOO-7")
def test_a_tool_choice_keeps_its_keys() -> None:
    choice = {"type": "function", "function": {"name": "lookup", "description": "d"}, "disable_parallel": True}
    native = forwarded(tools=[function_tool()], tool_choice=choice, parallel_tool_calls=False)
    assert native["tool_choice"] == {"type": "function", "function": {"name": "lookup"}}
    assert native["parallel_tool_calls"] is False


@pytest.mark.rule("MSG-12")
@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "Q", "name": 7}, "messages[0].name"),
        ({"role": "tool", "content": "42", "name": "n"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": 1, "index": 0}]}, "messages[0].tool_calls[0].id"),
        ({"role": "user", "content": [{"type": "text", "text": 7, "x": 1}]}, "messages[0].content[0].text"),
    ],
)
def test_keys_that_are_served_keep_their_validation(message: dict[str, Any], param: str) -> None:
    assert refused_at(messages=[message]) == ("BadRequest", param)


@pytest.mark.rule("MSG-5")
@pytest.mark.parametrize("calls", [{}, {"tool_calls": None}, {"tool_calls": []}])
def test_an_assistant_message_of_nothing_is_refused(calls: dict[str, Any]) -> None:
    assert refused_at(messages=[{"role": "assistant", "content": None} | calls]) == (
        "BadRequest",
        "messages[0].content",
    )


@pytest.mark.parametrize("name", ["", None])
def test_an_empty_name_counts_as_left_out(name: str | None) -> None:
    assert forwarded(messages=[USER | {"name": name}])["messages"] == [USER]


# Any JSON whatever


@given(NEARLY_REQUESTS)
def test_the_steps_take_any_request_and_change_none(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    refused(body)
    cleaned = drop_unknown_nested_keys(drop_default_no_ops(body))
    assert body == before
    assert drop_unknown_nested_keys(drop_default_no_ops(cleaned)) == cleaned


def test_what_is_quoted_from_a_request_is_cut() -> None:
    long = "x" * 100_000
    for body in (
        {long: 1},
        chat_body(messages=[{"role": long}]),
        chat_body(messages=[{"role": "user", "content": [{"type": long}]}]),
    ):
        violation = find_refused_parameter(body)
        assert violation is not None
        assert len(violation.param) + len(violation.message) < 500
