"""Everything that can happen, in any order and at once, and what must hold all the while."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.native_invariants import broken_invariants
from tests.support.native_server import Answer, Caller, NativeServer, declaration, running_native
from tests.support.waiting import wait_until

_EXPECTED = frozenset({200, 202, 400, 403, 404, 409})
"""No call ever ends in a server error."""

_LONG = 8192
_REASONS = ("generation_error", "prompt_overflow", "tool_violation", "reply_refused")


class _Life:
    """One of everything that can be called, with what is known of requests and jobs.

    Args:
        native: The Horde.
        submitters: Who submits: the last one is anonymous.
        owners: Who owns workers.
    """

    def __init__(self, native: NativeServer, submitters: list[Caller], owners: list[Caller]) -> None:
        self.native = native
        self.submitters = submitters
        self.owners = owners
        self.requests: list[tuple[Caller, str]] = []
        self.jobs: list[tuple[Caller, dict[str, Any]]] = []
        self.keys: list[tuple[Caller, str, dict[str, object]]] = []

    @classmethod
    async def begin(cls, native: NativeServer) -> "_Life":
        tag = uuid4().hex[:8]
        owners = [await native.user(f"owner-{number}-{tag}") for number in range(2)]
        rich, poor = await native.user(f"rich-{tag}", kudos=2000), await native.user(f"poor-{tag}", kudos=1)
        life = cls(native, [rich, poor, owners[0], native.caller()], owners)
        for number in range(3):
            await life.pop(number)
        return life

    async def submit(self, who: int, *, stream: bool, large: bool, both: bool) -> None:
        caller = self.submitters[who % len(self.submitters)]
        body: dict[str, object] = {
            "stream": stream,
            "params": {"max_length": _LONG if large else 64},
            "models": ["test/model-a", "test/model-b"] if both else ["test/model-a"],
            "operation_key": str(uuid4()),
        }
        self.keys.append((caller, str(body["operation_key"]), body))
        answer = _seen(await caller.submit(**body))
        if answer.status == 202:
            self.requests.append((caller, answer.body["id"]))

    async def submit_again(self, which: int) -> None:
        if self.keys:
            caller, _, body = self.keys[which % len(self.keys)]
            answer = _seen(await caller.submit(**body))
            # The first copy may have been refused; then this one is the first.
            if answer.status == 202:
                self.requests.append((caller, answer.body["id"]))

    async def cancel(self, which: int) -> None:
        if self.requests:
            caller, request_id = self.requests[which % len(self.requests)]
            _seen(await caller.cancel(request_id))

    async def cancel_key(self, which: int) -> None:
        if self.keys:
            caller, key, _ = self.keys[which % len(self.keys)]
            _seen(await caller.cancel_operation(key))

    async def pop(self, which: int) -> None:
        number = which % 3
        owner = self.owners[number % 2]
        declared = declaration("test/model-b" if number == 1 else "test/model-a", max_length=16384)
        name = f"worker-{number}-{id(self)}"
        answer = _seen(await owner.pop(name=name, declared=declared, pop_id=str(uuid4())))
        if answer.body["id"] is not None:
            self.jobs.append((owner, answer.body))

    async def progress(self, which: int, seq: int) -> None:
        if self.jobs:
            owner, job = self.jobs[which % len(self.jobs)]
            _seen(await owner.progress(job["id"], seq, "some text"))

    async def reply(self, which: int, length: int) -> None:
        if self.jobs:
            owner, job = self.jobs[which % len(self.jobs)]
            _seen(await owner.reply(job, "x" * length))

    async def fault(self, which: int, reason: str) -> None:
        if self.jobs:
            owner, job = self.jobs[which % len(self.jobs)]
            _seen(await owner.fault(job, reason))

    async def lose_lease(self) -> None:
        await self.native.pool.execute("UPDATE chat_jobs SET deadline_at = now() WHERE state = 'processing'")

    async def expire(self) -> None:
        await self.native.pool.execute(
            "UPDATE chat_requests SET expires_at = now() WHERE state IN ('waiting', 'processing') AND seq % 3 = 0"
        )

    async def finish(self) -> None:
        """Let every request end."""
        await self.native.pool.execute(
            "UPDATE chat_requests SET expires_at = now() WHERE state IN ('waiting', 'processing')"
        )
        open_ones = "SELECT count(*) = 0 FROM chat_requests WHERE state IN ('waiting', 'processing')"
        await wait_until(lambda: self.native.pool.fetchval(open_ones), description="every request to end")


def _seen(answer: Answer) -> Answer:
    assert answer.status in _EXPECTED, answer
    return answer


_WHICH = st.integers(0, 50)


class _Calls(RuleBasedStateMachine):
    """One call after the other; the test sets the Horde and the loop it runs in."""

    native: ClassVar[NativeServer]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.life = self._run(_Life.begin(self.native))

    def _run[Result](self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @rule(who=_WHICH, stream=st.booleans(), large=st.booleans(), both=st.booleans())
    def submit(self, *, who: int, stream: bool, large: bool, both: bool) -> None:
        self._run(self.life.submit(who, stream=stream, large=large, both=both))

    @rule(which=_WHICH)
    def submit_again(self, which: int) -> None:
        self._run(self.life.submit_again(which))

    @rule(which=_WHICH)
    def cancel(self, which: int) -> None:
        self._run(self.life.cancel(which))

    @rule(which=_WHICH)
    def cancel_key(self, which: int) -> None:
        self._run(self.life.cancel_key(which))

    @rule(which=_WHICH)
    def pop(self, which: int) -> None:
        self._run(self.life.pop(which))

    @rule(which=_WHICH, seq=st.integers(1, 3))
    def progress(self, which: int, seq: int) -> None:
        self._run(self.life.progress(which, seq))

    @rule(which=_WHICH, length=st.integers(0, 500))
    def reply(self, which: int, length: int) -> None:
        self._run(self.life.reply(which, length))

    @rule(which=_WHICH, reason=st.sampled_from(_REASONS))
    def fault(self, which: int, reason: str) -> None:
        self._run(self.life.fault(which, reason))

    @rule()
    def lose_lease(self) -> None:
        self._run(self.life.lose_lease())

    @rule()
    def expire(self) -> None:
        self._run(self.life.expire())

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self._run(broken_invariants(self.native.pool)) == {}


def test_whatever_is_called_in_whatever_order_the_invariants_hold(migrated_database_url: str, redis_url: str) -> None:
    chosen = settings(
        max_examples=15,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> NativeServer:
            return await stack.enter_async_context(running_native(migrated_database_url, redis_url))

        try:
            _Calls.native, _Calls.runner = runner.run(start()), runner
            run_state_machine_as_test(_Calls, settings=chosen)
        finally:
            runner.run(stack.aclose())


@pytest.mark.rule("KUD-16")
async def test_whatever_is_called_at_once_the_invariants_hold(native: NativeServer) -> None:
    life = await _Life.begin(native)
    dice = random.Random(5)  # noqa: S311 - the same storm each time

    async def one_call() -> None:
        which = dice.randrange(1000)
        calls: list[tuple[int, Any]] = [
            (6, lambda: life.submit(which, stream=which % 2 == 0, large=which % 3 == 0, both=which % 5 == 0)),
            (1, lambda: life.submit_again(which)),
            (2, lambda: life.cancel(which)),
            (1, lambda: life.cancel_key(which)),
            (9, lambda: life.pop(which)),
            (4, lambda: life.progress(which, 1 + which % 2)),
            (6, lambda: life.reply(which, which)),
            (2, lambda: life.fault(which, _REASONS[which % len(_REASONS)])),
            (1, life.lose_lease),
        ]
        chosen = dice.choices([call for _, call in calls], [weight for weight, _ in calls])[0]
        await chosen()

    async def caller() -> None:
        for _ in range(40):
            await one_call()

    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(caller(), name=f"test - caller {number}")
    assert await broken_invariants(native.pool) == {}
    await life.finish()
    assert await broken_invariants(native.pool) == {}
    replied = await native.pool.fetchval("SELECT count(*) FROM chat_replies")
    assert replied > 0
