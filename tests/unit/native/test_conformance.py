from typing import Any

import pytest

from horde.native.conformance import NonconformantReplyError, conform_reply, find_schema_fault

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _call(name: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}


def _said(content: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}


def _format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def test_a_text_reply_to_a_text_request_passes_unchanged() -> None:
    reply = _said("Hello")
    assert conform_reply({}, reply, "stop") is reply


@pytest.mark.parametrize(
    ("payload", "reply", "finish"),
    [
        ({}, _said(None, _call("f")), "tool_calls"),
        ({"tools": [_tool("f")]}, _said(None, _call("g")), "tool_calls"),
        ({"tools": [_tool("f")], "tool_choice": "required"}, _said("no"), "stop"),
        ({"tools": [_tool("f")]}, _said("no"), "tool_calls"),
    ],
    ids=["no tools offered", "another tool", "required and none", "says it called"],
)
@pytest.mark.rule("TOO-20", "CNF-10")
def test_calls_that_the_request_does_not_allow_are_refused(
    payload: dict[str, Any], reply: dict[str, Any], finish: str
) -> None:
    with pytest.raises(NonconformantReplyError):
        conform_reply(payload, reply, finish)


@pytest.mark.rule("TOO-22")
def test_without_parallel_calls_the_first_call_is_kept() -> None:
    payload = {"tools": [_tool("f")], "parallel_tool_calls": False}
    reply = conform_reply(payload, _said(None, _call("f", 1), _call("f", 2)), "tool_calls")
    assert reply["tool_calls"] == [_call("f", 1)]


@pytest.mark.parametrize("content", ["not json", "", "[1]", '{"a": NaN}', '"text"'])
@pytest.mark.rule("FMT-12")
def test_a_json_object_reply_that_is_no_json_object_is_refused(content: str) -> None:
    with pytest.raises(NonconformantReplyError):
        conform_reply({"response_format": {"type": "json_object"}}, _said(content), "stop")


@pytest.mark.rule("FMT-11")
def test_a_json_schema_reply_has_to_satisfy_the_schema() -> None:
    conform_reply(_format(_SCHEMA), _said('{"a": 1}'), "stop")
    with pytest.raises(NonconformantReplyError):
        conform_reply(_format(_SCHEMA), _said('{"a": "1"}'), "stop")


@pytest.mark.rule("FMT-7")
def test_a_format_applies_to_the_final_text_and_not_to_calls() -> None:
    payload = {"tools": [_tool("f")], "response_format": {"type": "json_object"}}
    conform_reply(payload, _said("let me look", _call("f")), "tool_calls")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$id": "http://example.com/a", "$ref": "b"},
        {"$schema": "http://example.com/draft"},
        {"type": "nonsense"},
        {"pattern": "("},
        {"$ref": "#/missing"},
    ],
)
def test_a_schema_that_does_not_compile_or_points_outside_itself_is_refused(schema: dict[str, Any]) -> None:
    fault = find_schema_fault(_format(schema))
    assert fault is not None
    assert fault.param == "response_format.json_schema.schema"
    in_tool = {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}
    fault = find_schema_fault(in_tool)
    assert fault is not None
    assert fault.param == "tools[0].function.parameters"


def test_a_schema_with_references_inside_itself_compiles() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert find_schema_fault(_format(schema)) is None
    conform_reply(_format(schema), _said('{"a": 1}'), "stop")


def test_a_pattern_that_backtracks_without_end_is_bounded() -> None:
    schema = {"properties": {"a": {"pattern": "^(?=(a+)+$)(a+)+$"}}}
    with pytest.raises(NonconformantReplyError):
        conform_reply(_format(schema), _said('{"a": "' + "a" * 5000 + '!"}'), "stop")


@pytest.mark.rule("RES-8", "FMT-12")
@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_json_reply_that_was_cut_at_its_limit_is_delivered_and_says_length(kind: str) -> None:
    schema = {"name": "a", "schema": {"type": "object"}, "strict": True}
    payload = {"response_format": {"type": kind, "json_schema": schema}}
    reply = {"role": "assistant", "content": '{"a": [1, '}
    assert conform_reply(payload, reply, "length") is reply
    with pytest.raises(NonconformantReplyError):
        conform_reply(payload, reply, "stop")
