"""OpenAI's structural rules for strict schemas, at every place a schema can hold another."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.chat_rules.strict_schema import find_strict_schema_fault
from tests.support.json_values import JSON_VALUES

NAMES = st.text("abc", min_size=1, max_size=3)
LEAVES = st.sampled_from([{"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["a", 1]}, {"$ref": "#/$defs/a"}])


def strict_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an object schema that keeps the rules."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    } | more  # fmt: skip


STRICT_SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(NAMES, inner, max_size=3).map(strict_object)
        | st.dictionaries(NAMES, inner, max_size=2).map(lambda defs: strict_object({}, **{"$defs": defs}))
        | st.lists(inner, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas})
        | inner.map(lambda schema: {"type": "array", "items": schema})
    ),
    max_leaves=8,
)


def object_schemas(schema: Any) -> list[dict[str, Any]]:
    """Every object schema inside a generated one, itself included."""
    if isinstance(schema, list):
        return [found for inner in schema for found in object_schemas(inner)]
    if not isinstance(schema, dict):
        return []
    found = [schema] if schema.get("type") == "object" else []
    return found + [each for inner in schema.values() for each in object_schemas(inner)]


@pytest.mark.rule("FMT-5", "TOO-10")
@given(STRICT_SCHEMAS)
def test_a_schema_whose_objects_are_all_closed_and_complete_breaks_nothing(schema: dict[str, Any]) -> None:
    assert find_strict_schema_fault(schema) is None


@pytest.mark.rule("FMT-5")
@given(STRICT_SCHEMAS.filter(object_schemas), st.data())
def test_one_open_object_anywhere_is_found(schema: dict[str, Any], data: st.DataObject) -> None:
    broken = copy.deepcopy(schema)
    target = data.draw(st.sampled_from(object_schemas(broken)))
    target["additionalProperties"] = data.draw(st.sampled_from([True, None, 0, {}, "false"]))
    fault = find_strict_schema_fault(broken)
    assert fault is not None
    assert fault.endswith("'additionalProperties' is required to be supplied and to be false.")


@pytest.mark.rule("FMT-5")
@given(STRICT_SCHEMAS.filter(lambda schema: any(each["properties"] for each in object_schemas(schema))), st.data())
def test_one_property_that_is_not_required_is_found_and_named(schema: dict[str, Any], data: st.DataObject) -> None:
    broken = copy.deepcopy(schema)
    target = data.draw(st.sampled_from([each for each in object_schemas(broken) if each["properties"]]))
    name = data.draw(st.sampled_from(sorted(target["properties"])))
    target["required"].remove(name)
    fault = find_strict_schema_fault(broken)
    assert fault is not None
    assert fault.endswith(f"including every key in properties. Missing '{name}'.")


OPEN = {"type": "object", "properties": {}}
PLACES: list[tuple[dict[str, Any], str]] = [
    (OPEN, "()"),
    (strict_object({"a": OPEN}), "('properties', 'a')"),
    (strict_object({"a": {"type": "array", "items": OPEN}}), "('properties', 'a', 'items')"),
    (strict_object({"a": {"anyOf": [{"type": "null"}, OPEN]}}), "('properties', 'a', 'anyOf', '1')"),
    (strict_object({}, **{"$defs": {"node": OPEN}}), "('$defs', 'node')"),
    (strict_object({}, definitions={"node": OPEN}), "('definitions', 'node')"),
    ({"allOf": [OPEN]}, "('allOf', '0')"),
    ({"prefixItems": [OPEN]}, "('prefixItems', '0')"),
    ({"if": OPEN}, "('if',)"),
    ({"not": OPEN}, "('not',)"),
]


@pytest.mark.rule("FMT-5", "ERR-37")
@pytest.mark.parametrize(("schema", "context"), PLACES, ids=[context for _, context in PLACES])
def test_the_place_at_fault_is_named_as_openai_names_it(schema: dict[str, Any], context: str) -> None:
    assert find_strict_schema_fault(schema) == (
        f"In context={context}, 'additionalProperties' is required to be supplied and to be false."
    )


@pytest.mark.rule("FMT-5")
def test_a_recursive_schema_is_walked_once() -> None:
    node = strict_object({"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
    assert (
        find_strict_schema_fault(strict_object({"head": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}})) is None
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}},
        {"type": ["object", "null"]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        strict_object({"a": {}}, required="a"),
        strict_object({"a": {}}, required=[1, None]),
    ],
)
def test_an_object_in_another_guise_is_still_one(schema: dict[str, Any]) -> None:
    assert find_strict_schema_fault(schema) is not None


@pytest.mark.parametrize("name", ["properties", "items", "$defs", "additionalProperties", "required"])
def test_a_property_may_be_named_like_a_keyword(name: str) -> None:
    assert find_strict_schema_fault(strict_object({name: {"type": "string"}})) is None


@pytest.mark.parametrize("keyword", ["const", "enum", "default", "examples", "description"])
def test_a_value_that_looks_like_a_schema_is_none(keyword: str) -> None:
    assert find_strict_schema_fault({keyword: OPEN}) is None
    assert find_strict_schema_fault({keyword: [OPEN]}) is None


@given(JSON_VALUES)
def test_whatever_stands_in_place_of_a_schema_is_no_crash(value: Any) -> None:
    for keyword in ("properties", "$defs", "items", "anyOf", "required", "type"):
        fault = find_strict_schema_fault({"type": "object", "additionalProperties": False, keyword: value})
        assert fault is None or len(fault) < 5000


def test_a_long_property_name_does_not_make_a_long_message() -> None:
    fault = find_strict_schema_fault(strict_object({"x" * 100_000: OPEN}))
    assert fault is not None
    assert len(fault) < 300
