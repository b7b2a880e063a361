"""Bodies that are nearly right, on real requests and jobs: a clear refusal, never a server error, nothing changed."""

import copy
from asyncio import Runner
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.json_values import JSON_VALUES, ODD_VALUES
from tests.support.native_invariants import broken_invariants
from tests.support.native_server import MODEL, Answer, Caller, NativeServer, pop_body, running_native

_EVERYTHING = """
SELECT md5(string_agg(line, E'\\n' ORDER BY line)) FROM (
    SELECT r::text AS line FROM chat_requests r UNION ALL SELECT j::text FROM chat_jobs j
    UNION ALL SELECT q::text FROM chat_queue q UNION ALL SELECT l::text FROM ledger l
    UNION ALL SELECT a::text FROM accounts a UNION ALL SELECT o::text FROM chat_operations o
    UNION ALL SELECT w.id || ' ' || w.name || ' ' || w.maintenance FROM workers w) lines
"""
"""What a refusal must leave as it was: everything but heartbeats and declarations."""

_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_BODIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "submit": (
        "POST",
        "/v2/generate/chat",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "me"},
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "42"},
            ],
            "models": [MODEL],
            "params": {
                "max_length": 64,
                "max_context_length": 4096,
                "temperature": 1.0,
                "stop_sequence": ["x"],
                "seed": 1,
            },
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            "conformance": "best_effort",
            "context_fit": "grow",
            "max_kudos": 100,
            "workers": {"ignore": [str(uuid4())]},
            "stream": True,
            "operation_key": "<key>",
        },
    ),
    "pop": ("POST", "/v2/generate/text/pop", {**pop_body(), "pop_id": "<key>", "running": ["<job>"]}),
    "progress": ("POST", "/v2/generate/chat/progress", {"id": "<job>", "seq": 1, "text": "A", "reasoning": "B"}),
    "reply": (
        "POST",
        "/v2/generate/text/submit",
        {
            "id": "<job>",
            "model_id": MODEL,
            "message": {"role": "assistant", "content": "A", "reasoning_content": "B", "tool_calls": [_CALL]},
            "finish_reason": "stop",
            "native_finish_reason": "eos",
            "prompt_tokens": 1,
            "completion_tokens": 2,
            "reasoning_tokens": 3,
        },
    ),
    "fault": (
        "POST",
        "/v2/generate/text/submit",
        {"id": "<job>", "state": "faulted", "fault_reason": "tool_violation"},
    ),
    "maintenance": ("PUT", "/v2/workers/<worker>", {"maintenance": False, "message": "away"}),
}
"""A body of each kind that is right; ``<…>`` stands for an id that is there."""


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in inner:
        yield (*path, key)
        yield from _places(member, (*path, key))


@st.composite
def _changed(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """Draw a body with a few values replaced, left out or added, anywhere in it."""
    changed = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(sorted(_places(changed), key=repr)))
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
            case "replace":
                holder[path[-1]] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES) | JSON_VALUES))
            case "remove":
                del holder[path[-1]]
            case _ if isinstance(holder, dict):
                name = draw(st.sampled_from(["", "extra", "id", "\0"]))
                holder[name] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
        if not changed:
            break
    return changed


class _Target:
    """A Horde with a request that waits and a job that runs, whatever was done to the one before."""

    def __init__(self, native: NativeServer, user: Caller) -> None:
        self.native = native
        self.user = user
        self.job: str | None = None

    async def send(self, kind: str, body: dict[str, Any]) -> tuple[Answer, bool]:
        """Send a body; return the answer, and whether anything changed."""
        if self.job is None and kind != "maintenance":
            # The pop before may have withdrawn the worker.
            await self.user.pop()
            await self.user.submit_id(conformance="best_effort", stream=True)
            self.job = (await self.user.pop()).body["id"]
        ids = {"<job>": self.job or "", "<key>": str(uuid4()), "<worker>": str(await self.native.worker_id())}
        method, path, _ = _BODIES[kind]
        before = await self.native.pool.fetchval(_EVERYTHING)
        answer = await self.user.call(method, path.replace("<worker>", ids["<worker>"]), _filled(body, ids))
        if answer.status == 200 or answer.rc == "ChatSubmitNonconformant":
            self.job = None
        return answer, await self.native.pool.fetchval(_EVERYTHING) != before


def _filled(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(member, ids) for key, member in value.items()}
    if isinstance(value, list):
        return [_filled(member, ids) for member in value]
    return ids.get(value, value) if isinstance(value, str) else value


@pytest.mark.rule("NAT-2")
@pytest.mark.parametrize("kind", _BODIES)
def test_a_body_that_is_nearly_right_is_taken_or_refused_and_a_refusal_changes_nothing(
    migrated_database_url: str, redis_url: str, kind: str
) -> None:
    with Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> _Target:
            # Nothing but the calls changes anything.
            native = await stack.enter_async_context(
                running_native(migrated_database_url, redis_url, sweep_seconds=3600.0)
            )
            user = await native.user("user", kudos=10**9)
            await user.come_online()
            return _Target(native, user)

        target = runner.run(start())

        @settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck))
        @given(body=_changed(_BODIES[kind][2]))
        def check(body: dict[str, Any]) -> None:
            answer, changed = runner.run(target.send(kind, body))
            assert answer.status < 500, answer
            if answer.status >= 400 and answer.rc != "ChatSubmitNonconformant":
                assert not changed, answer
                assert answer.body["message"]

        try:
            check()
            assert runner.run(broken_invariants(target.native.pool)) == {}
        finally:
            runner.run(stack.aclose())


@pytest.mark.parametrize("kind", _BODIES)
async def test_the_bodies_that_are_changed_above_are_right_themselves(native: NativeServer, kind: str) -> None:
    user = await native.user("user", kudos=1000)
    await user.come_online()
    answer, _ = await _Target(native, user).send(kind, _BODIES[kind][2])
    assert answer.status in {200, 202}, answer
