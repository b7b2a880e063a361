"""Sizes of a request, each at its bound and one past it."""

from typing import Any

import orjson
import pytest
from horde_sdk.generation_parameters.text.chat_limits import (
    MAX_CHAT_SCHEMA_NESTING,
    MAX_CHAT_TEXT_BYTES,
    MAX_CHAT_TOOL_COUNT,
    MAX_CHAT_TOOL_SPEC_BYTES,
    chat_schema_exceeds_nesting,
)

from horde.chat_contract import (
    MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES,
    MAX_CHAT_TOOL_CALL_COUNT,
    MAX_CHAT_TOOL_CALL_ID_LENGTH,
    MAX_CHAT_TOOL_CALL_NAME_LENGTH,
    ContractViolation,
)
from horde.chat_rules.limits import (
    find_nesting_violation,
    find_text_size_violation,
    find_tool_call_bound_violation,
    find_tool_spec_violation,
)
from tests.support.requests import assistant_calls, function_tool, tool_answer


def nested(levels: int, leaf: object = None) -> dict[str, Any]:
    """Return a schema that nests a number of levels below its root."""
    schema: dict[str, Any] = {"type": "string"} if leaf is None else {"enum": leaf}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"p": schema}}
    return schema


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}


def code_and_param(violation: ContractViolation | None) -> tuple[str, str] | None:
    return None if violation is None else (violation.code, violation.param)


@pytest.mark.rule("TOO-9", "FMT-6", "REQ-55")
def test_ten_levels_below_the_root_are_served() -> None:
    schema = nested(MAX_CHAT_SCHEMA_NESTING, leaf=["a"])
    body = {"messages": [], "tools": [function_tool(parameters=schema)], "response_format": json_format(schema)}
    assert find_nesting_violation(body) is None


@pytest.mark.rule("TOO-9", "FMT-6", "REQ-55")
@pytest.mark.parametrize("levels", [11, 12, 50])
def test_more_than_ten_levels_are_refused_at_the_schemas_path(levels: int) -> None:
    fine, deep = function_tool(parameters=nested(1)), function_tool("g", parameters=nested(levels))
    unsupported = "UnsupportedChatParameter"
    in_tool = find_nesting_violation({"messages": [], "tools": [fine, deep]})
    assert code_and_param(in_tool) == (unsupported, "tools[1].function.parameters")
    in_format = find_nesting_violation({"messages": [], "response_format": json_format(nested(levels))})
    assert code_and_param(in_format) == (unsupported, "response_format.json_schema.schema")


@pytest.mark.parametrize("levels", range(9, 13))
@pytest.mark.parametrize("leaf", [None, [], [["x"]], {"a": {"b": {}}}])
def test_the_bound_is_the_sdks_own(levels: int, leaf: object) -> None:
    schema = nested(levels, leaf)
    found = find_nesting_violation({"messages": [], "tools": [function_tool(parameters=schema)]})
    assert (found is not None) is chat_schema_exceeds_nesting(schema)


def call_text(arguments: str) -> list[dict[str, Any]]:
    return [assistant_calls("a", name="f", arguments=arguments)]


@pytest.mark.rule("REQ-60")
def test_message_texts_and_calls_share_one_mebibyte() -> None:
    text = "é" * (MAX_CHAT_TEXT_BYTES // 2 - 3)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": text}]},
        assistant_calls("a", name="fgh", arguments="{}"),
        tool_answer("a", "x"),
    ]
    assert find_text_size_violation({"messages": messages}) is None
    messages.append({"role": "user", "content": "y"})
    violation = find_text_size_violation({"messages": messages})
    assert code_and_param(violation) == ("UnsupportedChatParameter", "messages")
    assert violation is not None
    assert str(MAX_CHAT_TEXT_BYTES + 1) in violation.message


@pytest.mark.rule("REQ-60", "IMG-2")
def test_a_picture_is_no_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (MAX_CHAT_TEXT_BYTES + 1)}}
    assert find_text_size_violation({"messages": [{"role": "user", "content": [picture]}]}) is None


@pytest.mark.rule("TOO-1", "REQ-58")
def test_128_tools_are_served_and_one_more_is_refused() -> None:
    tools = [function_tool(f"f{number}") for number in range(MAX_CHAT_TOOL_COUNT + 1)]
    assert find_tool_spec_violation({"tools": tools[:-1]}) is None
    violation = find_tool_spec_violation({"tools": tools})
    assert code_and_param(violation) == ("UnsupportedChatParameter", "tools")


@pytest.mark.rule("FMT-10", "REQ-58")
@pytest.mark.parametrize("first", ["tools", "response_format"])
def test_tools_choice_and_format_together_take_at_most_256_kib(first: str) -> None:
    body: dict[str, Any] = {"response_format": json_format({"description": ""})}
    if first == "tools":
        body = {"tools": [function_tool()], "tool_choice": "auto", **body}
    room = MAX_CHAT_TOOL_SPEC_BYTES - len(orjson.dumps(body))
    body["response_format"]["json_schema"]["schema"]["description"] = "x" * room
    assert find_tool_spec_violation({"messages": [], **body}) is None
    body["response_format"]["json_schema"]["schema"]["description"] += "x"
    violation = find_tool_spec_violation({"messages": [], **body})
    assert code_and_param(violation) == ("UnsupportedChatParameter", first)


IDENTIFIER = "i" * MAX_CHAT_TOOL_CALL_ID_LENGTH
NAME = "n" * MAX_CHAT_TOOL_CALL_NAME_LENGTH
ARGUMENTS = "é" * (MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES // 2)


@pytest.mark.rule("REQ-59")
def test_calls_at_their_bounds_are_served() -> None:
    calls = assistant_calls(IDENTIFIER, name=NAME, arguments=ARGUMENTS)
    messages = [calls, tool_answer(IDENTIFIER), assistant_calls(*map(str, range(MAX_CHAT_TOOL_CALL_COUNT)))]
    assert find_tool_call_bound_violation({"messages": messages}) is None


@pytest.mark.rule("REQ-59")
@pytest.mark.parametrize(
    ("message", "param"),
    [
        (assistant_calls(*map(str, range(MAX_CHAT_TOOL_CALL_COUNT + 1))), "messages[1].tool_calls"),
        (assistant_calls("a", IDENTIFIER + "i"), "messages[1].tool_calls[1].id"),
        (assistant_calls(""), "messages[1].tool_calls[0].id"),
        (assistant_calls("a", name=NAME + "n"), "messages[1].tool_calls[0].function.name"),
        (assistant_calls("a", name=""), "messages[1].tool_calls[0].function.name"),
        (assistant_calls("a", arguments=ARGUMENTS + "x"), "messages[1].tool_calls[0].function.arguments"),
        (tool_answer(IDENTIFIER + "i"), "messages[1].tool_call_id"),
        (tool_answer(""), "messages[1].tool_call_id"),
    ],
)
def test_a_call_past_a_bound_is_refused_at_its_path(message: dict[str, Any], param: str) -> None:
    violation = find_tool_call_bound_violation({"messages": [{"role": "user", "content": "Q"}, message]})
    assert code_and_param(violation) == ("UnsupportedChatParameter", param)


@pytest.mark.rule("TOO-1")
def test_empty_arguments_and_truncated_ones_are_the_models_own_and_served() -> None:
    for arguments in ("", '{"x": ', "not json"):
        assert find_tool_call_bound_violation({"messages": call_text(arguments)}) is None
