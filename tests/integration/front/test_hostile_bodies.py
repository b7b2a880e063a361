"""Whatever arrives as a body or a header: an answer in the envelope, never a 5xx, at a cost linear in its size."""

import asyncio
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.oai.errors import ChatFrontError
from horde.oai.prepare import read_chat_request
from horde.oai.responses import ChatCompletionResponse, OpenAIError
from tests.support.front import Front, chat_body, running_front
from tests.support.json_values import JSON_VALUES, NEARLY_REQUESTS
from tests.support.requests import assistant_calls, function_tool, tool_answer


class FrontForExamples:
    """One front for all examples of a test, driven from outside of its loop."""

    def __init__(self, runner: asyncio.Runner, front: Front) -> None:
        self._runner = runner
        self.front = front

    def answer(self, content: bytes | list[bytes], headers: list[tuple[str, str]] | None = None) -> tuple[int, bytes]:
        """Return status and body of the answer to a chat request of these bytes."""

        async def ask() -> tuple[int, bytes]:
            exchange = self.front.client.request("POST", "/v1/chat/completions", content=content, headers=headers)
            return await exchange.status(), await exchange.body()

        return self._runner.run(ask())

    def check(self, content: bytes | list[bytes], headers: list[tuple[str, str]] | None = None) -> None:
        """Check that the answer is a completion, a stream, or a refusal of the client in the envelope."""
        status, body = self.answer(content, headers)
        if status == 200:
            if not body.startswith((b"data: ", b": ")):
                ChatCompletionResponse.model_validate_json(body)
            return
        assert 400 <= status < 500, body
        OpenAIError.model_validate_json(body)
        assert len(body) < 4000


@contextmanager
def front_for_examples() -> Iterator[FrontForExamples]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        front = runner.run(stack.enter_async_context(running_front(max_inflight_per_source=10_000)))
        try:
            yield FrontForExamples(runner, front)
        finally:
            runner.run(stack.aclose())


@pytest.mark.rule("REQ-1", "REQ-2", "ERR-1", "ERR-33")
def test_no_json_document_whatever_gives_a_5xx_or_an_answer_without_the_envelope() -> None:
    with front_for_examples() as fronts:

        @given(NEARLY_REQUESTS | JSON_VALUES)
        def check(document: Any) -> None:
            fronts.check(orjson.dumps(document))

        check()


@pytest.mark.rule("REQ-1", "REQ-2", "ERR-1", "ERR-33")
def test_no_bytes_whatever_give_a_5xx_or_an_answer_without_the_envelope() -> None:
    good = orjson.dumps(chat_body())

    with front_for_examples() as fronts:

        @given(st.lists(st.binary(max_size=30) | st.just(good[:40]) | st.just(good[40:]), min_size=1, max_size=4))
        def check(parts: list[bytes]) -> None:
            fronts.check(parts)
            fronts.check(gzip.compress(b"".join(parts)), [("Content-Encoding", "gzip")])

        check()


@pytest.mark.rule("ERR-1", "AUT-3", "ATT-1")
def test_no_headers_whatever_give_a_5xx_or_an_answer_without_the_envelope() -> None:
    names = ("authorization", "content-length", "content-encoding", "content-type", "x-forwarded-for", "x-title",
             "referer", "user-agent", "x-stainless-read-timeout", "x-stainless-retry-count", "origin")  # fmt: skip
    values = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20) | st.sampled_from(
        ["Bearer k", "gzip", "identity", "nan", "inf", "-1", "1e400", "0", "99999999999999999999"]
    )

    with front_for_examples() as fronts:

        @given(st.lists(st.tuples(st.sampled_from(names), values), max_size=5))
        def check(headers: list[tuple[str, str]]) -> None:
            fronts.check(orjson.dumps(chat_body()), headers)

        check()


# Cost by size


def events_of(call: Callable[[], object]) -> int:
    """Return how many functions, Python's and C's, are called by a call."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def strict_format(properties: int) -> dict[str, Any]:
    names = [f"p{number}" for number in range(properties)]
    schema = {
        "type": "object", "additionalProperties": False, "required": names,
        "properties": {name: {"type": "string"} for name in names},
    }  # fmt: skip
    return {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": schema}}


def rounds(count: int) -> list[dict[str, Any]]:
    return [each for number in range(count) for each in (assistant_calls(f"c{number}"), tool_answer(f"c{number}"))]


def parallel(count: int) -> list[dict[str, Any]]:
    ids = [f"c{number}" for number in range(count)]
    return [assistant_calls(*ids), *(tool_answer(identifier) for identifier in reversed(ids))]


USER = {"role": "user", "content": "Hi"}

FAMILIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "messages": lambda size: {"messages": [USER] * size},
    "wrong messages": lambda size: {"messages": [*[USER] * size, 7]},
    "unknown keys of messages": lambda size: {"messages": [USER | {f"k{number}": 1 for number in range(size)}]},
    "parts": lambda size: {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}] * size}]},
    "rounds of calls": lambda size: {"messages": rounds(size)},
    "parallel calls": lambda size: {"messages": parallel(size)},
    "calls without answers": lambda size: {"messages": [*parallel(size)[:1], USER]},
    "tools": lambda size: {"tools": [function_tool(f"f{number}", parameters={}) for number in range(size)]},
    "strict properties": lambda size: {"response_format": strict_format(size)},
    "models": lambda size: {"model": None, "models": [f"m{number}" for number in range(size)]},
    "stops": lambda size: {"stop": ["x"] * size},
    "metadata": lambda size: {"metadata": {f"k{number}": "v" for number in range(size)}},
    "options": lambda size: {"horde": {f"k{number}": 1 for number in range(size)}},
    "workers": lambda size: {"horde": {"workers": {"only": ["w"] * size}}},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_four_times_as_much_costs_at_most_about_four_times_the_calls(family: str) -> None:
    def cost(size: int) -> int:
        data = orjson.dumps(chat_body(**FAMILIES[family](size)))

        def read() -> None:
            with suppress(ChatFrontError):
                read_chat_request(data)

        read()
        return events_of(read)

    once, four_times = cost(100), cost(400)
    assert four_times <= 4.4 * once + 200


HUGE = 16 * 2**20 - 200

ATTACKS: dict[str, Callable[[], bytes]] = {
    "numbers as messages": lambda: b'{"model":"a","messages":[' + b"1," * (HUGE // 2) + b"1]}",
    "tiny messages": lambda: b'{"model":"a","messages":[' + b'{"role":"user","content":""},' * (HUGE // 29) + b"{}]}",
    "empty objects": lambda: b'{"model":"a","messages":[' + b"{}," * (HUGE // 3) + b"{}]}",
    "brackets": lambda: b"[" * HUGE,
    "keys": lambda: b'{"horde":{' + b",".join(b'"%x":1' % number for number in range(HUGE // 10)) + b"}}",
    "one long key": lambda: b'{"' + b"k" * HUGE + b'":1}',
    "one long string": lambda: b'{"model":"a","messages":"' + b"x" * HUGE + b'"}',
    "one long text": lambda: json.dumps(chat_body()).replace("Hi", "x" * HUGE).encode(),
}


@pytest.mark.rule("REQ-60")
@pytest.mark.parametrize("attack", ATTACKS)
def test_sixteen_mebibytes_of_anything_are_refused_after_few_calls(attack: str) -> None:
    data = ATTACKS[attack]()

    def read() -> None:
        with pytest.raises(ChatFrontError) as caught:
            read_chat_request(data)
        assert caught.value.status == 400
        assert len(orjson.dumps(caught.value.envelope())) < 2000

    assert events_of(read) < 5000
