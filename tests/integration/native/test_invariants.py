"""Everything that can happen, in any order and at once, and what must hold all the while."""

import asyncio
import itertools
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import asyncpg
import pytest
from asyncpg.pool import PoolConnectionProxy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from horde.native.admin.ledger_check import check_ledger, prove_ledger
from tests.support.native_invariants import broken_invariants
from tests.support.native_life import FAULT_REASONS, NativeLife
from tests.support.native_server import NativeServer, running_native

_WHICH = st.integers(0, 50)


class _Calls(RuleBasedStateMachine):
    """One call after the other; the test sets the Horde and the loop it runs in."""

    native: ClassVar[NativeServer]
    runner: ClassVar[asyncio.Runner]
    start: ClassVar["staticmethod[[], Coroutine[Any, Any, NativeServer]]"]

    def __init__(self) -> None:
        super().__init__()
        self.life = self._run(NativeLife.begin(self.native))

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

    @rule(which=_WHICH, reason=st.sampled_from(FAULT_REASONS))
    def fault(self, which: int, reason: str) -> None:
        self._run(self.life.fault(which, reason))

    @rule()
    def lose_lease(self) -> None:
        self._run(self.life.lose_lease())

    @rule()
    def expire(self) -> None:
        self._run(self.life.expire())

    @rule(which=_WHICH, kudos=st.integers(-500, 500))
    def award(self, which: int, kudos: int) -> None:
        self._run(self.life.award(which, kudos))

    @rule()
    def forget(self) -> None:
        self._run(self.life.forget())

    @rule()
    def restart(self) -> None:
        _Calls.native = self._run(self.start())
        self.life.move_to(self.native)

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self._run(broken_invariants(self.native.pool)) == {}
        assert self._run(prove_ledger(self.native.pool)) == []


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
            await stack.aclose()
            return await stack.enter_async_context(running_native(migrated_database_url, redis_url))

        try:
            _Calls.native, _Calls.runner, _Calls.start = runner.run(start()), runner, staticmethod(start)
            run_state_machine_as_test(_Calls, settings=chosen)
        finally:
            runner.run(stack.aclose())


_CORRUPTIONS = {
    "ledger": (
        "UPDATE ledger SET amount = amount + 1 WHERE id = $1",
        "UPDATE ledger SET amount = amount + 2^40::bigint WHERE id = $1",
        "UPDATE ledger SET source = target, target = source WHERE id = $1 AND source <> target",
        "UPDATE ledger SET source = -5 WHERE id = $1 AND source <> -5",
        "UPDATE ledger SET target = -5 WHERE id = $1 AND target <> -5",
        "UPDATE ledger SET kind = 'charge' WHERE id = $1 AND kind <> 'charge'",
        "UPDATE ledger SET kind = 'grant' WHERE id = $1 AND kind <> 'grant'",
        "UPDATE ledger SET kind = 'release' WHERE id = $1 AND kind <> 'release'",
        "UPDATE ledger SET request_id = uuidv7() WHERE id = $1 AND kind <> 'charge'",
        "UPDATE ledger SET request_id = uuidv7() WHERE id = $1 AND request_id IN (SELECT id FROM chat_requests)",
        "UPDATE ledger SET request_id = NULL WHERE id = $1 AND request_id IS NOT NULL",
        "DELETE FROM ledger WHERE id = $1",
        """INSERT INTO ledger (kind, source, target, amount, request_id)
           SELECT kind, source, target, amount, request_id FROM ledger WHERE id = $1""",
    ),
    "accounts": (
        "UPDATE accounts SET balance = balance + 1 WHERE id = $1",
        "UPDATE accounts SET balance = balance - 1 WHERE id = $1 AND (kind <> 'held' OR balance > 0)",
        "UPDATE accounts SET balance = -balance WHERE id = $1 AND kind <> 'held' AND balance <> 0",
    ),
    "chat_requests": (
        "UPDATE chat_requests SET held = held + 1 WHERE id = $1",
        "UPDATE chat_requests SET charged = charged + 1 WHERE id = $1",
        "UPDATE chat_requests SET held = 0 WHERE id = $1 AND held <> 0",
        "UPDATE chat_requests SET charged = 0 WHERE id = $1 AND charged <> 0",
    ),
}
"""Changes of one row, by its table, each of which the ledger's check has to find."""

_ROWS = {
    # What a user paid to itself moved nothing: without the request's record nothing is left to hold it to.
    "ledger": """SELECT id FROM ledger l WHERE source <> target
                 OR EXISTS (SELECT FROM chat_requests r WHERE r.id = l.request_id) ORDER BY id""",
    "accounts": "SELECT id FROM accounts ORDER BY id",
    "chat_requests": "SELECT id FROM chat_requests ORDER BY id",
}


@pytest.mark.rule("KUD-15", "KUD-19")
async def test_the_ledgers_check_finds_whatever_row_was_changed(native: NativeServer) -> None:
    life = await _small_history(native)
    assert await prove_ledger(native.pool) == []

    missed = []
    async with native.pool.acquire() as connection:
        for table, changes in _CORRUPTIONS.items():
            rows = await connection.fetch(_ROWS[table])
            for row, change in itertools.product(rows, changes):
                if await _is_missed(connection, change, row["id"]):
                    missed.append((change, row["id"]))
    assert missed == []
    await life.finish()


async def _is_missed(connection: "PoolConnectionProxy[asyncpg.Record]", change: str, row_id: object) -> bool:
    """Say whether the check finds nothing after a change, which is taken back; False when nothing was changed."""
    corruption = connection.transaction()
    await corruption.start()
    await connection.execute("ALTER TABLE ledger DISABLE TRIGGER ledger_append_only")
    # A row stands for a movement: the index would refuse one that is changed to a second of its kind.
    await connection.execute("DROP INDEX ledger_once_idx")
    changed = await connection.execute(change, row_id)
    missed = not changed.endswith(" 0") and not await check_ledger(connection)
    await corruption.rollback()
    return missed


async def _small_history(native: NativeServer) -> NativeLife:
    """Have everything once that the ledger can tell of, and records of it that are deleted and that are not."""
    life = await NativeLife.begin(native)
    for deleted in (True, False):
        # Rich and long: held for. The anonymous user and what is short: not.
        for who, large in ((0, True), (0, False), (2, False), (3, False)):
            await life.submit(who, stream=True, large=large, both=False)
        await life.pop(0)
        await life.reply(len(life.jobs) - 1, 400)
        await life.pop(2)
        await life.progress(len(life.jobs) - 1, 1)
        await life.cancel(1 if deleted else 5)
        await life.pop(0)
        await life.reply(len(life.jobs) - 1, 40)
        await life.award(0, 100)
        await life.award(1, -50)
        if deleted:
            await life.finish()
            await life.forget()
    await life.submit(0, stream=False, large=True, both=True)
    kinds = await native.pool.fetch("SELECT DISTINCT kind FROM ledger ORDER BY kind")
    assert [row["kind"] for row in kinds] == ["charge", "grant", "hold", "release"]
    return life


@pytest.mark.rule("KUD-16")
async def test_whatever_is_called_at_once_the_invariants_hold(native: NativeServer) -> None:
    life = await NativeLife.begin(native)
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
            (2, lambda: life.fault(which, FAULT_REASONS[which % len(FAULT_REASONS)])),
            (1, life.lose_lease),
            (1, lambda: life.award(which, which - 500)),
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
    assert await prove_ledger(native.pool) == []
    replied = await native.pool.fetchval("SELECT count(*) FROM chat_replies")
    assert replied > 0
