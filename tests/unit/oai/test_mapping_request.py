"""The native body of a request: the client's values under native names, and nothing filled in."""

from typing import Any

import orjson
import pytest

from horde.oai.mapping import build_native_chat_body, relays_deltas
from horde.oai.prepare import read_chat_request
from tests.support.front import chat_body
from tests.support.requests import OPERATION_KEY, forwarded, function_tool

USER = {"role": "user", "content": "Hi"}
JSON_MODE = {"type": "json_object"}
NAMED = {"type": "json_schema", "json_schema": {"name": "r", "schema": {}}}


def relayed(**more: Any) -> dict[str, Any]:
    request, body = read_chat_request(orjson.dumps(chat_body(**more)))
    return build_native_chat_body(request, body, operation_key=OPERATION_KEY, relay=relays_deltas(request))


@pytest.mark.rule("GEN-3", "SUB-1", "SMP-4")
def test_a_minimal_request_has_messages_models_and_a_key_and_nothing_filled_in() -> None:
    assert relayed() == {"messages": [USER], "models": ["test/model-a"], "operation_key": OPERATION_KEY}


@pytest.mark.rule("REQ-11", "REQ-13", "HOR-2")
def test_everything_a_client_may_send_has_its_native_place() -> None:
    tools = [function_tool(parameters={"type": "object"})]
    sent = forwarded(
        model=None, models=["b", "a"], max_completion_tokens=900, temperature=0.5, top_p=0.9, frequency_penalty=1,
        presence_penalty=-1, stop=["x", "", "y"], seed=7, n=1, reasoning_effort="low", tools=tools, tool_choice="auto",
        parallel_tool_calls=True, response_format=JSON_MODE, user="u", metadata={}, stream=False, service_tier="auto",
        horde={
            "conformance": "best_effort", "context_fit": "grow", "max_context_length": 4096, "max_kudos": 10,
            "openai_guards": False, "workers": {"only": ["w"]}, "trusted_workers": True, "slow_workers": False,
            "include_reasoning": False, "availability_mode": "fail_fast",
        },
    )  # fmt: skip
    assert sent == {
        "messages": [USER],
        "models": ["b", "a"],
        "params": {
            "max_length": 900, "max_context_length": 4096, "temperature": 0.5, "top_p": 0.9, "frequency_penalty": 1,
            "presence_penalty": -1, "stop_sequence": ["x", "y"], "seed": 7, "reasoning_effort": "low",
        },
        "tools": tools, "tool_choice": "auto", "parallel_tool_calls": True, "response_format": JSON_MODE,
        "conformance": "best_effort", "context_fit": "grow", "max_kudos": 10, "openai_guards": False,
        "workers": {"only": ["w"]}, "trusted_workers": True, "slow_workers": False,
    }  # fmt: skip


@pytest.mark.rule("MSG-19", "MSG-2")
def test_a_developer_message_is_forwarded_as_one_for_the_horde_to_map() -> None:
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, USER]
    assert forwarded(messages=messages)["messages"] == messages


@pytest.mark.rule("IMG-1", "IMG-2", "IMG-3")
def test_a_picture_is_forwarded_as_its_address_with_its_detail() -> None:
    pictures = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    messages = [{"role": "user", "content": [{"type": "text", "text": "Q"}, *pictures]}]
    assert forwarded(messages=messages)["messages"] == messages


@pytest.mark.rule("KUD-17", "HOR-4")
@pytest.mark.parametrize("include", [True, False, None])
def test_whether_reasoning_is_shown_makes_no_other_operation(include: bool | None) -> None:  # noqa: FBT001 - a JSON value
    assert relayed(horde={"include_reasoning": include}) == relayed()


@pytest.mark.rule("REQ-15", "DLT-1", "DLT-3")
def test_a_stream_of_plain_text_asks_for_live_text() -> None:
    assert relayed(stream=True)["stream"] is True
    assert relayed(stream=True, response_format={"type": "text"}, tools=[])["stream"] is True


@pytest.mark.rule("DLT-1", "DLT-2", "REQ-15")
@pytest.mark.parametrize(
    "more",
    [
        {"stream": False}, {"stream": None}, {"stream": True, "tools": [function_tool()]},
        {"stream": True, "tools": [function_tool()], "tool_choice": "none"},
        {"stream": True, "response_format": JSON_MODE}, {"stream": True, "response_format": NAMED},
    ],
)  # fmt: skip
def test_what_is_verified_on_the_complete_reply_is_not_asked_for_live(more: dict[str, Any]) -> None:
    assert "stream" not in relayed(**more)


@pytest.mark.rule("REQ-13", "TOO-4", "FMT-4")
def test_numbers_and_nulls_inside_a_schema_are_not_touched() -> None:
    schema: dict[str, Any] = {
        "minimum": -0.0,
        "maximum": 1e300,
        "multipleOf": 2**64 - 1,
        "default": None,
        "enum": [1, 1.0, None, {}],
    }
    tools = [function_tool(parameters=schema)]
    sent = orjson.dumps(forwarded(tools=tools)["tools"][0]["function"]["parameters"])
    assert sent == orjson.dumps(schema)
