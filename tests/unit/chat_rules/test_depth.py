from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.chat_contract import exceeds_depth
from tests.support.json_values import JSON_VALUES


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def values_in(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inner) + sum(map(values_in, inner))


@given(JSON_VALUES, st.integers(0, 6))
def test_depth_is_measured_as_a_recursive_reading_would(value: Any, levels: int) -> None:
    assert exceeds_depth(value, levels) is (depth_of(value) > levels)


@given(JSON_VALUES, st.integers(0, 12))
def test_values_are_counted_over_all_levels(value: Any, values: int) -> None:
    assert exceeds_depth(value, 1000, values=values) is (values_in(value) > values)


def test_nesting_far_past_the_interpreters_recursion_limit_is_measured() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert exceeds_depth(value, 100_000)
    assert not exceeds_depth(value, 100_001)
    while value:  # Taken apart from outside, as the interpreter would recurse to free it.
        value = value.pop()


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "[[[["])
def test_a_scalar_has_no_depth(value: Any) -> None:
    assert not exceeds_depth(value, 0)
