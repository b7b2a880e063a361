"""What a schema may cost: expanded references and patterns, measured in time proportional to the schema's text."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.chat_contract import find_native_violation, find_schema_excess
from horde.chat_rules.schema_cost import MAX_EXPANDED_NODES, MAX_PATTERN_BYTES, MAX_PATTERNS
from tests.support.json_values import JSON_VALUES

TOO_LARGE = f"with its references expanded, a schema may hold at most {MAX_EXPANDED_NODES} objects and arrays"
HEAD = {"$ref": "#/$defs/a0"}


def chain(length: int, link: Any) -> dict[str, Any]:
    """Return definitions a0, a1, ... each of which `link` makes of the reference to the next."""
    return {f"a{number}": link(f"#/$defs/a{number + 1}") for number in range(length)} | {f"a{length}": {}}


def both(reference: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": reference}, {"$ref": reference}]}


DOUBLINGS: list[Any] = [
    both,
    lambda reference: {"anyOf": [{"not": {"$ref": reference}}, {"if": {"$ref": reference}}]},
    lambda reference: {"dependentSchemas": {"a": {"$ref": reference}, "b": {"$ref": reference}}},
    lambda reference: {"properties": {"a": {"$ref": reference}, "b": {"$ref": reference}}},
    lambda reference: {"items": {"$ref": reference.replace("/a", "/%61")}, "contains": {"$ref": reference}},
]


@pytest.mark.parametrize("link", DOUBLINGS)
def test_references_doubled_again_and_again_are_too_complex(link: Any) -> None:
    assert find_schema_excess({"$defs": chain(30, link), **HEAD}) == TOO_LARGE
    assert find_schema_excess({"$defs": chain(5, link), **HEAD}) is None


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ({"$anchor": "a1"}, "#a1"),
        ({"$dynamicAnchor": "a1"}, "#a1"),
        ({"$id": "http://127.0.0.1/x/a1"}, "a1"),
        ({"$id": "a1"}, "json-schema:///a1#"),
    ],
)
def test_references_by_any_name_are_followed(name: dict[str, Any], reference: str) -> None:
    many = name | {"allOf": [{} for _ in range(200)]}
    pointing = [{"$ref": reference} for _ in range(150)]
    assert find_schema_excess({"$defs": {"a": many}, "allOf": pointing}) == TOO_LARGE
    assert find_schema_excess({"$defs": {"a": many}, "allOf": pointing[:50]}) is None


def test_a_reference_below_an_id_starts_at_that_schema() -> None:
    inner = {"$id": "inner", "$defs": chain(30, both), **HEAD}
    assert find_schema_excess({"$defs": {"a0": {}, "x": inner}, "properties": {"x": {"$ref": "inner"}}}) == TOO_LARGE


def test_recursion_into_members_does_not_hide_what_is_doubled_at_one_value() -> None:
    links = {
        f"a{number}": both(f"#/$defs/a{number + 1}") | {"properties": {"p": {"$ref": f"#/$defs/a{max(number - 1, 0)}"}}}
        for number in range(30)
    }
    assert find_schema_excess({"$ref": "#/$defs/a30", "$defs": links | {"a30": {"items": HEAD}}}) == TOO_LARGE


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"anyOf": [{"type": "null"}, {"$ref": "#"}]}])
def test_a_schema_that_is_itself_at_the_same_value_is_too_complex(schema: dict[str, Any]) -> None:
    assert find_schema_excess(schema) == TOO_LARGE


NODE = {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}
NEXT = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        {},
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        {"properties": {"next": NEXT, "all": {"type": "array", "items": {"$ref": "#"}}}},
        {"properties": {"$ref": {"type": "string"}, "dependencies": {"items": {"$ref": "#"}}, "not": {"$ref": "#"}}},
        {"$defs": {"a": {"type": "string"}}, "properties": {str(n): {"$ref": "#/$defs/a"} for n in range(2000)}},
        {"properties": {str(n): {"pattern": "^[0-9]{4}$", "enum": [str(n)]} for n in range(2000)}},
        {"$ref": "#/missing"},
        {"$ref": "#/$defs"},
        {"$ref": "http://["},
        {"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}},
    ],
)
def test_what_real_schemas_hold_is_not_too_complex(schema: Any) -> None:
    assert find_schema_excess(schema) is None


def test_patterns_are_bounded_in_number_and_size() -> None:
    many = {"properties": {str(number): {"pattern": str(number)} for number in range(MAX_PATTERNS + 1)}}
    assert find_schema_excess(many) == f"a schema may hold at most {MAX_PATTERNS} patterns"
    assert find_schema_excess({"patternProperties": {str(n): {} for n in range(MAX_PATTERNS + 1)}}) is not None
    assert find_schema_excess({"items": {"pattern": "\u00e9" * (MAX_PATTERN_BYTES // 2)}}) is None
    assert find_schema_excess({"items": {"pattern": "\u00e9" * (MAX_PATTERN_BYTES // 2) + "a"}}) is not None


@pytest.mark.rule("FMT-6", "TOO-9")
def test_the_violation_names_the_schema_at_fault() -> None:
    heavy = {"$defs": chain(30, both), **HEAD}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": heavy}}
    violation = find_native_violation({"messages": [], "response_format": named})
    assert violation is not None
    assert (violation.code, violation.param) == ("UnsupportedChatParameter", "response_format.json_schema.schema")
    assert violation.message == f"'{violation.param}' is too complex: {TOO_LARGE}."
    light = {"type": "function", "function": {"name": "f"}}
    tool = {"type": "function", "function": {"name": "g", "parameters": heavy}}
    violation = find_native_violation({"messages": [], "tools": [light, tool]})
    assert violation is not None
    assert violation.param == "tools[1].function.parameters"


def test_the_patterns_of_a_requests_schemas_are_bounded_together() -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{f}", "parameters": {"patternProperties": dict.fromkeys(names)}}}
        for f in range(5)
        for names in [[f"{f} {number}" for number in range(MAX_PATTERNS)]]
    ]
    assert find_native_violation({"messages": [], "tools": tools[:4]}) is None
    violation = find_native_violation({"messages": [], "tools": tools})
    assert violation is not None
    assert violation.param == "tools[4].function.parameters"


POINTERS = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/$defs/c/allOf/0", "#a", "a", "b#/allOf", "http://a/%23"])
SCHEMAS = st.recursive(
    POINTERS.map(lambda pointer: {"$ref": pointer}) | JSON_VALUES,
    lambda inner: (
        st.dictionaries(st.sampled_from(["$defs", "properties", "not", "if", "$id", "$anchor", "a", "b"]), inner)
        | st.fixed_dictionaries({"allOf": st.lists(inner, max_size=3)}, optional={"$id": st.sampled_from("ab")})
        | st.fixed_dictionaries({"$defs": st.fixed_dictionaries({"a": inner, "b": inner, "c": inner})})
    ),
    max_leaves=20,
)


@given(SCHEMAS)
def test_whatever_stands_in_place_of_a_schema_is_measured(schema: Any) -> None:
    assert find_schema_excess(schema) in {None, TOO_LARGE}


def calls_to_measure(schema: Any) -> int:
    """Return how many calls the measuring takes, generators' steps included."""
    calls = 0

    def count(_frame: Any, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        assert find_schema_excess(schema) == TOO_LARGE
    finally:
        sys.setprofile(previous)
    return calls


@given(st.integers(20, 60), st.sampled_from(DOUBLINGS))
def test_twice_as_long_a_chain_takes_twice_the_steps(length: int, link: Any) -> None:
    once, twice = ({"$defs": chain(links, link), **HEAD} for links in (length, 2 * length))
    assert calls_to_measure(twice) <= 2.2 * calls_to_measure(once)


@pytest.mark.parametrize("link", DOUBLINGS)
def test_a_chain_longer_than_any_stack_is_measured(link: Any) -> None:
    assert find_schema_excess({"$defs": chain(2 * sys.getrecursionlimit(), link), **HEAD}) == TOO_LARGE
