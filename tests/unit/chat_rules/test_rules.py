"""The shared request rules together: which applies when, in which order, with which code."""

from typing import Any

import pytest

from horde.chat_contract import ContractViolation, find_contract_violation, find_native_violation
from tests.support.requests import assistant_calls, function_tool

USER = {"role": "user", "content": "Hi"}
OPEN_SCHEMA = {"type": "object", "properties": {}}
OPEN_FAULT = "In context=(), 'additionalProperties' is required to be supplied and to be false."
JSON_MODE = {"type": "json_object"}


def named_format(**spec: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "r", "schema": OPEN_SCHEMA} | spec}


def found(violation: ContractViolation | None) -> tuple[str, str, str]:
    assert violation is not None
    return violation.code, violation.param, violation.message


@pytest.mark.rule("REQ-50", "REQ-51", "TOO-8")
@pytest.mark.parametrize("tools", [{}, {"tools": None}, {"tools": []}])
@pytest.mark.parametrize(
    ("key", "value"),
    [("tool_choice", "none"), ("tool_choice", "auto"), ("parallel_tool_calls", True), ("parallel_tool_calls", False)],
)
def test_a_key_about_tools_without_tools_is_a_conflict(tools: dict[str, Any], key: str, value: object) -> None:
    code, param, message = found(find_contract_violation({"messages": [USER], key: value, **tools}))
    assert (code, param) == ("ChatRequestConflict", key)
    assert message.startswith(f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified.")
    assert f"Leave out '{key}'" in message


@pytest.mark.parametrize("key", ["tool_choice", "parallel_tool_calls"])
def test_a_null_key_about_tools_counts_as_left_out(key: str) -> None:
    assert find_contract_violation({"messages": [USER], key: None}) is None


@pytest.mark.rule("TOO-10", "REQ-53")
def test_a_strict_tool_breaking_the_rules_is_named_by_its_path_and_function() -> None:
    tools = [function_tool("a", parameters=OPEN_SCHEMA), function_tool("b", strict=True, parameters=OPEN_SCHEMA)]
    code, param, message = found(find_contract_violation({"messages": [USER], "tools": tools}))
    assert (code, param) == ("UnsupportedChatParameter", "tools[1].function.parameters")
    assert message == f"Invalid schema for function 'b': {OPEN_FAULT}"


@pytest.mark.rule("FMT-5", "REQ-53")
def test_a_strict_format_breaking_the_rules_is_named_by_its_key_and_name() -> None:
    body = {"messages": [USER], "response_format": named_format(strict=True)}
    code, param, message = found(find_contract_violation(body))
    assert (code, param) == ("UnsupportedChatParameter", "response_format")
    assert message == f"Invalid schema for response_format 'r': {OPEN_FAULT}"


@pytest.mark.rule("FMT-5", "TOO-10")
@pytest.mark.parametrize("strict", [{}, {"strict": None}, {"strict": False}])
def test_without_strict_a_schema_may_be_as_it_is(strict: dict[str, Any]) -> None:
    tools = [function_tool(parameters=OPEN_SCHEMA, **strict)]
    assert (
        find_contract_violation({"messages": [USER], "tools": tools, "response_format": named_format(**strict)}) is None
    )


def test_a_strict_function_without_parameters_takes_none() -> None:
    assert find_contract_violation({"messages": [USER], "tools": [function_tool(strict=True)]}) is None


@pytest.mark.rule("FMT-9", "REQ-54", "HOR-5")
def test_a_json_mode_without_the_word_is_refused_under_the_guard_alone() -> None:
    body = {"messages": [USER], "response_format": JSON_MODE}
    assert find_contract_violation(body) is None
    assert found(find_contract_violation(body, openai_guards=True)) == (
        "ChatRequestConflict",
        "messages",
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
    )


@pytest.mark.rule("REQ-54", "FMT-9")
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Answer in JSON."}, USER],
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "as Json, please"}]}],
    ],
)
def test_the_word_may_stand_in_any_message_and_any_case(messages: list[dict[str, Any]]) -> None:
    assert find_contract_violation({"messages": messages, "response_format": JSON_MODE}, openai_guards=True) is None


@pytest.mark.rule("REQ-54")
def test_the_guard_is_about_the_json_mode_alone() -> None:
    assert find_contract_violation({"messages": [USER]}, openai_guards=True) is None
    assert find_contract_violation({"messages": [USER], "response_format": named_format()}, openai_guards=True) is None


@pytest.mark.rule("REQ-57")
def test_a_forced_function_that_no_tool_defines_is_refused() -> None:
    choice = {"type": "function", "function": {"name": "g"}}
    body = {"messages": [USER], "tools": [function_tool("f")], "tool_choice": choice}
    assert found(find_native_violation(body))[:2] == ("UnsupportedChatParameter", "tool_choice")
    assert find_native_violation({**body, "tools": [function_tool("f"), function_tool("g")]}) is None


@pytest.mark.rule("REQ-49")
def test_the_first_rule_broken_in_their_order_is_the_one_reported() -> None:
    broken = {
        "messages": [assistant_calls("a"), USER],
        "tool_choice": "auto",
        "response_format": named_format(strict=True),
    }
    assert found(find_contract_violation(broken))[1] == "tool_choice"
    assert found(find_contract_violation({**broken, "tools": [function_tool()]}))[1] == "messages[1].role"
