"""Messages, tools and formats: what is served, and the path of what is not."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from horde.chat_contract import ChatMessage, ResponseFormat, ToolChoice, ToolDefinition, error_path
from tests.support.requests import assistant_calls, function_tool, tool_answer

MESSAGE: TypeAdapter[Any] = TypeAdapter(ChatMessage)
TOOL: TypeAdapter[Any] = TypeAdapter(ToolDefinition)
CHOICE: TypeAdapter[Any] = TypeAdapter(ToolChoice)
FORMAT: TypeAdapter[Any] = TypeAdapter(ResponseFormat)


def paths(adapter: TypeAdapter[Any], value: Any) -> list[str]:
    """Paths of everything that is wrong with a value."""
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(value)
    return [error_path(error["loc"]) for error in caught.value.errors()]


def picture(url: Any = "https://example.org/a.png", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | more}


TEXT_PART = {"type": "text", "text": "Hi"}


@pytest.mark.rule("MSG-1", "MSG-2", "MSG-3", "MSG-4", "MSG-6")
@pytest.mark.parametrize(
    "message",
    [
        *({"role": role, "content": "Hi", "name": "n"} for role in ("system", "developer", "user", "assistant")),
        *({"role": role, "content": [TEXT_PART, TEXT_PART]} for role in ("system", "developer", "user", "assistant")),
        tool_answer("a"),
        tool_answer("a", [TEXT_PART]),
        {"role": "user", "content": [TEXT_PART, picture()]},
        {"role": "user", "content": ""},
    ],
)
def test_the_served_roles_take_text_or_parts(message: dict[str, Any]) -> None:
    MESSAGE.validate_python(message)


@pytest.mark.rule("MSG-5")
def test_an_assistant_message_may_lack_content_only_beside_calls() -> None:
    calls = assistant_calls("a")
    MESSAGE.validate_python(calls)
    MESSAGE.validate_python({key: calls[key] for key in ("role", "tool_calls")})
    further: list[dict[str, Any]] = [{}, {"content": None}, {"content": None, "tool_calls": []}, {"tool_calls": None}]
    for message in further:
        with pytest.raises(ValidationError, match="only beside 'tool_calls'"):
            MESSAGE.validate_python({"role": "assistant"} | message)


@pytest.mark.rule("MSG-6", "MSG-18")
@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "tool", "content": "42"}, "tool_call_id"),
        ({"role": "tool", "content": "42", "tool_call_id": 1}, "tool_call_id"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": []}, "content"),
        ({"role": "user", "content": [TEXT_PART, 1]}, "content[1]"),
        ({"role": "user", "content": [{"type": []}]}, "content[0]"),
        ({"role": "user", "content": [{"type": {}, "text": "Hi"}]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url"),
        ({"role": "user", "content": [picture(detail="huge")]}, "content[0].image_url.detail"),
        ({"role": "system", "content": [picture()]}, "content[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [1]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls"),
        (assistant_calls("a", arguments={}), "tool_calls[0].function.arguments"),  # type: ignore[arg-type] # that is what is wrong
        (assistant_calls("a\0"), "tool_calls[0].id"),
        ({"role": "user", "content": "Hi", "name": "n" * 257}, "name"),
        ({"role": "user", "content": "Hi", "name": "a\0"}, "name"),
        ({"role": "user", "content": "Hi", "further": 1}, "further"),
    ],
)
def test_what_is_wrong_in_a_message_is_named_by_its_path(message: dict[str, Any], path: str) -> None:
    assert paths(MESSAGE, message)[0] == path


def test_a_long_list_of_wrong_items_is_one_error() -> None:
    assert paths(MESSAGE, {"role": "user", "content": [1] * 1000}) == ["content[0]"]
    assert paths(MESSAGE, {"role": "assistant", "tool_calls": [1] * 1000}) == ["tool_calls[0]"]


@pytest.mark.rule("IMG-1", "IMG-2", "IMG-3")
@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,AAAA",
        "data:image/svg+xml;base64,AAAA",
        "DATA:Image/JPEG;name=a.jpg;BASE64,AAAA",
        "https://example.org/a.png?b#c",
        "HTTP://example.org",
    ],
)
def test_a_picture_is_inline_or_at_a_web_address(url: str) -> None:
    for detail in ({}, {"detail": None}, {"detail": "auto"}, {"detail": "low"}, {"detail": "high"}):
        MESSAGE.validate_python({"role": "user", "content": [picture(url, **detail)]})


@pytest.mark.rule("IMG-2")
@pytest.mark.parametrize(
    "url",
    [
        "", "a.png", "/a.png", "//example.org/a.png", "ftp://example.org/a.png", "file:///etc/passwd", "https://",
        "https:///a.png", "data:application/octet-stream;base64,AAAA", "data:image/png,AAAA", "data:;base64,AAAA",
        "data:text/html;base64,AAAA", " https://example.org/a.png", "javascript:alert(1)", 7, None,
    ],
)  # fmt: skip
def test_any_other_picture_address_is_refused_at_its_path(url: Any) -> None:
    assert paths(MESSAGE, {"role": "user", "content": [picture(url)]}) == ["content[0].image_url.url"]


@pytest.mark.rule("TOO-1", "TOO-2")
@pytest.mark.parametrize("name", ["f", "get_weather-2", "A" * 64])
def test_a_tool_has_a_name_of_the_documented_characters(name: str) -> None:
    TOOL.validate_python(function_tool(name, description="d", parameters={"type": "object"}, strict=True))
    TOOL.validate_python(function_tool(name))


@pytest.mark.rule("TOO-2")
@pytest.mark.parametrize("name", ["", "a b", "é", "a.b", "A" * 65, "f\n", None, 1])
def test_any_other_function_name_is_refused(name: Any) -> None:
    assert paths(TOOL, function_tool(name)) == ["function.name"]
    assert paths(CHOICE, {"type": "function", "function": {"name": name}}) == ["function.name"]


@pytest.mark.rule("TOO-5")
@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_the_four_tool_choices_are_served(choice: Any) -> None:
    CHOICE.validate_python(choice)


@pytest.mark.rule("TOO-5")
@pytest.mark.parametrize(
    ("choice", "path"),
    [
        ("any", ""), ("", ""), (1, ""), ([], ""), ({}, "type"), ({"type": "allowed_tools"}, "type"),
        ({"type": "function"}, "function"), ({"type": "function", "function": "f"}, "function"),
    ],
)  # fmt: skip
def test_any_other_tool_choice_is_refused(choice: Any, path: str) -> None:
    assert paths(CHOICE, choice)[0] == path


@pytest.mark.rule("FMT-1")
@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "r", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "r", "schema": {}, "description": "d", "strict": False}},
    ],
)
def test_the_three_formats_are_served(response_format: dict[str, Any]) -> None:
    FORMAT.validate_python(response_format)


@pytest.mark.rule("FMT-1", "FMT-2", "FMT-3", "REQ-21")
@pytest.mark.parametrize(
    ("response_format", "path"),
    [
        ({}, ""),
        ("json_object", ""),
        ({"type": "xml"}, ""),
        ({"type": []}, ""),
        ({"type": {"a": 1}}, ""),
        ({"type": "json_schema"}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "r"}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "r", "schema": "{}"}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "r", "schema": {}, "schema_": {}}}, "json_schema.schema_"),
        ({"type": "json_object", "schema": {}}, "schema"),
    ],
)
def test_any_other_format_is_refused_at_its_path(response_format: Any, path: str) -> None:
    assert paths(FORMAT, response_format)[0] == path


@pytest.mark.rule("FMT-3")
def test_the_python_name_of_the_schema_key_stands_in_for_nothing() -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "r", "schema_": {}}}
    assert set(paths(FORMAT, wrong)) == {"json_schema.schema", "json_schema.schema_"}
