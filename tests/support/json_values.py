"""Any JSON value, and requests that are nearly right: what a hostile or careless client may send."""

from typing import Any

from hypothesis import strategies as st

__all__ = ["JSON_VALUES", "NEARLY_REQUESTS"]

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
)

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4), max_leaves=12
)
"""Any JSON value that can be encoded."""

_ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", ""])
_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "input_audio"]) | JSON_VALUES,
        "text": _TEXT | JSON_VALUES,
        "image_url": JSON_VALUES | st.fixed_dictionaries({}, optional={"url": _TEXT, "detail": JSON_VALUES}),
    },
)
_CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": _TEXT | JSON_VALUES,
        "type": st.just("function") | JSON_VALUES,
        "function": JSON_VALUES | st.fixed_dictionaries({}, optional={"name": _TEXT, "arguments": _TEXT | JSON_VALUES}),
    },
)
_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": _ROLES | JSON_VALUES,
        "content": _TEXT | st.lists(_PARTS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "name": JSON_VALUES,
        "tool_calls": st.lists(_CALLS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "tool_call_id": _TEXT | JSON_VALUES,
    },
)
_FUNCTIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("lookup") | JSON_VALUES,
        "parameters": JSON_VALUES,
        "strict": st.booleans() | JSON_VALUES,
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
_OBJECTS = st.dictionaries(st.sampled_from(_NAMED), JSON_VALUES, max_size=4) | JSON_VALUES
_KEYS = (
    "models", "max_tokens", "max_completion_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "n", "horde", "reasoning_effort", "tool_choice", "parallel_tool_calls", "response_format", "stream",
    "stream_options", "user", "metadata", "logprobs", "top_logprobs", "store", "service_tier",
)  # fmt: skip

NEARLY_REQUESTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "model": st.just("test/model-a") | JSON_VALUES,
        "messages": st.lists(_MESSAGES | JSON_VALUES, max_size=4) | JSON_VALUES,
    },
    optional={
        "tools": JSON_VALUES
        | st.lists(st.fixed_dictionaries({}, optional={"type": st.just("function"), "function": _FUNCTIONS})),
    }
    | dict.fromkeys(_KEYS, _OBJECTS),
)
"""Requests with the right keys and values that may be anything."""
