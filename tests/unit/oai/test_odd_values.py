"""Every value of a full request in turn is replaced by each odd one: served or refused, never a failure."""

import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from horde.oai.errors import ChatFrontError
from horde.oai.mapping import build_native_chat_body, relays_deltas
from horde.oai.prepare import read_chat_request
from tests.support.front import chat_body
from tests.support.json_values import ODD_VALUES
from tests.support.requests import OPERATION_KEY, assistant_calls, function_tool, tool_answer

SCHEMA = {
    "type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"],
    "additionalProperties": False, "$defs": {"b": {"type": "array", "items": {"enum": [1]}}},
}  # fmt: skip

FULL = chat_body(
    messages=[
        {"role": "system", "content": "S", "name": "n"},
        {"role": "developer", "content": [{"type": "text", "text": "D"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Q"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
            ],
        },
        assistant_calls("a", "b"),
        tool_answer("b"),
        tool_answer("a", [{"type": "text", "text": "42"}]),
    ],
    max_tokens=64, max_completion_tokens=64, temperature=1.0, top_p=1, frequency_penalty=0, presence_penalty=0,
    stop=["x"], seed=1, n=1, reasoning_effort="low", user="u", metadata={"k": "v"}, stream=True,
    stream_options={"include_usage": True}, logprobs=False, top_logprobs=0, store=False, service_tier="auto",
    tools=[function_tool(description="d", parameters=SCHEMA, strict=True)], parallel_tool_calls=True,
    tool_choice={"type": "function", "function": {"name": "lookup"}},
    response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA, "strict": True}},
    horde={
        "include_reasoning": True, "availability_mode": "wait", "openai_guards": True, "conformance": "strict",
        "context_fit": "grow", "max_context_length": 1024, "max_kudos": 5, "workers": {"only": ["w"], "ignore": ["v"]},
        "trusted_workers": False, "slow_workers": True,
    },
)  # fmt: skip

type Path = tuple[str | int, ...]


def paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*path, step)
        yield from paths_in(inner, (*path, step))


def place(body: Any, path: Path) -> Any:
    """Return the container that holds what stands at a path."""
    for step in path[:-1]:
        body = body[step]
    return body


def check(body: dict[str, Any]) -> None:
    """Check that a request is refused in a few words, or that its native body can be sent."""
    try:
        request, screened = read_chat_request(orjson.dumps(body))
    except ChatFrontError as error:
        assert error.status in {400, 404}  # noqa: PT017 - either outcome is right
        assert 0 < len(error.message) < 1000  # noqa: PT017 - either outcome is right
        orjson.dumps(error.envelope())
    else:
        native = build_native_chat_body(request, screened, operation_key=OPERATION_KEY, relay=relays_deltas(request))
        orjson.dumps(native)


def test_the_full_request_is_served() -> None:
    read_chat_request(orjson.dumps(FULL))


@pytest.mark.rule("REQ-3", "MSG-12", "ERR-7")
@pytest.mark.parametrize("odd", ODD_VALUES, ids=repr)
def test_an_odd_value_anywhere_is_served_or_refused(odd: Any) -> None:
    for path in paths_in(FULL):
        body = copy.deepcopy(FULL)
        place(body, path)[path[-1]] = odd
        check(body)


def test_without_any_one_of_its_values_it_is_served_or_refused() -> None:
    for path in paths_in(FULL):
        body = copy.deepcopy(FULL)
        del place(body, path)[path[-1]]
        check(body)
