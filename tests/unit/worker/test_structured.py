from typing import Any

import pytest

from horde.worker.structured import breaks_strict_schema


def strict(schema: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema, **other}}


COLOUR = strict({"type": "object", "properties": {"colour": {"enum": ["red"]}}, "required": ["colour"]})


@pytest.mark.rule("CNF-4", "WRK-7")
@pytest.mark.parametrize(
    ("content", "breaks"),
    [('{"colour": "red"}', False), ('{"colour": "blue"}', True), ("{}", True), ('{"colour": "re', True), ("", True)],
)
def test_a_strict_reply_satisfies_its_schema_or_is_not_submitted(content: str, breaks: bool) -> None:  # noqa: FBT001 - a table
    assert breaks_strict_schema(COLOUR, content) is breaks


@pytest.mark.parametrize(
    "response_format",
    [
        None,
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    ],
)
def test_nothing_is_claimed_for_a_format_that_is_not_strict(response_format: dict[str, Any] | None) -> None:
    assert not breaks_strict_schema(response_format, "no json")


@pytest.mark.parametrize("schema", [{"$ref": "http://127.0.0.1:1/schema"}, {"type": 7}, {"pattern": "("}])
def test_a_schema_that_cannot_be_checked_proves_nothing_and_reads_nothing(schema: dict[str, Any]) -> None:
    assert breaks_strict_schema(strict(schema), '"x"')


@pytest.mark.rule("CNF-4")
def test_a_schema_that_would_take_endless_time_proves_nothing() -> None:
    links = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)} | {"a40": {"type": "string"}}
    assert breaks_strict_schema(strict({"$defs": links, "$ref": "#/$defs/a0"}), '"x"')
