"""Any JSON value, and requests that are nearly right: what a hostile or careless client may send."""

from typing import Any

from hypothesis import strategies as st

__all__ = ["JSON_VALUES", "NEARLY_REQUESTS", "ODD_VALUES"]

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
)

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4), max_leaves=6
)
"""Any JSON value that can be encoded."""

ODD_VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 2**64 - 1, "", "\0", "x", [], {}, [[]], [None], [{}], {"type": []}, {"type": {}}, {"": 1},
]  # fmt: skip
"""What finds most mistakes in the place of a value, and costs less to draw than any value."""

_ODD = st.sampled_from(ODD_VALUES)

_ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", ""])
_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "input_audio"]) | _ODD,
        "text": _TEXT | _ODD,
        "image_url": _ODD | st.fixed_dictionaries({}, optional={"url": _TEXT, "detail": _ODD}),
    },
)
_CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": _TEXT | _ODD,
        "type": st.just("function") | _ODD,
        "function": _ODD | st.fixed_dictionaries({}, optional={"name": _TEXT, "arguments": _TEXT | _ODD}),
    },
)
_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": _ROLES | _ODD,
        "content": _TEXT | st.lists(_PARTS | _ODD, max_size=3) | _ODD,
        "name": _ODD,
        "tool_calls": st.lists(_CALLS | _ODD, max_size=3) | _ODD,
        "tool_call_id": _TEXT | _ODD,
    },
)
_FUNCTIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("lookup") | _ODD,
        "parameters": _ODD,
        "strict": st.booleans() | _ODD,
    },
)
_NAMED = (
    "type",
    "name",
    "schema",
    "json_schema",
    "strict",
    "function",
    "only",
    "workers",
    "max_kudos",
    "include_usage",
)
_OBJECTS = st.dictionaries(st.sampled_from(_NAMED), _ODD, max_size=4) | _ODD
_KEYS = (
    "models", "max_tokens", "max_completion_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "n", "horde", "reasoning_effort", "tool_choice", "parallel_tool_calls", "response_format", "stream",
    "stream_options", "user", "metadata", "logprobs", "top_logprobs", "store", "service_tier",
)  # fmt: skip

_TOOLS = st.lists(
    st.fixed_dictionaries({}, optional={"type": st.just("function"), "function": _FUNCTIONS | _ODD}), max_size=3
)

NEARLY_REQUESTS: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda messages, further, more: {"model": "test/model-a", "messages": messages} | further | more,
    st.lists(_MESSAGES, max_size=3) | _ODD,
    st.dictionaries(st.sampled_from(_KEYS), _OBJECTS, max_size=3),
    st.fixed_dictionaries({}, optional={"tools": _TOOLS}) | st.fixed_dictionaries({"model": _ODD}),
)
"""Requests with the right keys and values that may be anything."""
