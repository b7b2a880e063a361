"""Transitions that meet in the middle of one another, and rows that stop others."""

import asyncio
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from horde.native.app import open_state
from horde.native.db import queries
from horde.native.queue.pop import pop_job
from horde.native.queue.submit import submit_request
from horde.native.settings import NativeSettings
from horde.native.users import User, ensure_user
from horde.native.wire import PopBody, parse_body
from tests.support.native_invariants import broken_invariants
from tests.support.native_server import Caller, NativeServer, pop_body, running_native, submit_body
from tests.support.waiting import wait_until

_WAITS = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"


@pytest.mark.rule("NAT-14")
async def test_a_request_that_was_popped_and_queued_again_during_a_claim_is_not_claimed_by_it(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online(name="slow")
    await owner.come_online(name="quick")
    request_id = await client.submit_id()
    # The same statement, held up between its look at the queue and its lock, as a busy machine does.
    held_up = queries.CLAIM_JOB.replace(
        "r.expires_at > now()", "r.expires_at > now() AND pg_advisory_xact_lock_shared(7) IS NOT NULL", 1
    )
    assert held_up != queries.CLAIM_JOB
    slow = await native.worker_id("slow")
    async with native.pool.acquire() as gate:
        await gate.execute("SELECT pg_advisory_lock(7)")
        claim = asyncio.create_task(
            native.pool.fetchrow(held_up, slow, uuid4(), None, 10.0, 5.0), name="test - slow claim"
        )
        await wait_until(lambda: native.pool.fetchval(_WAITS), description="the slow claim to wait")
        await owner.fault(await owner.pop_job(name="quick"))
        await gate.execute("SELECT pg_advisory_unlock(7)")
        assert await claim is None
    assert await broken_invariants(native.pool) == {}
    assert (await owner.pop_job(name="slow"))["payload"]["messages"]
    assert (await client.status(request_id))["processing"] == 1


@pytest.mark.rule("NAT-11")
async def test_a_request_that_cannot_be_ended_keeps_no_other_from_ending(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    broken = await client.submit_id()
    job = await owner.pop_job()
    sound = await client.submit_id()
    # A row that every attempt to queue the request again runs into.
    await native.pool.execute(
        "INSERT INTO chat_queue SELECT (q).* FROM ("
        "SELECT jsonb_populate_record(q, jsonb_build_object('request_id', $1::uuid)) AS q FROM chat_queue q LIMIT 1) q",
        UUID(broken),
    )
    await native.pool.execute("UPDATE chat_jobs SET deadline_at = now() WHERE id = $1", UUID(job["id"]))
    await native.pool.execute("UPDATE chat_requests SET expires_at = now() WHERE id = $1", UUID(sound))

    async def is_ended() -> bool:
        return bool((await client.status(sound))["done"])

    await wait_until(is_ended, description="the other request to end")
    assert (await client.status(broken))["processing"] == 1


@pytest.mark.rule("NAT-11")
async def test_a_sweep_holds_the_accounts_of_one_request_at_a_time(native: NativeServer, owner: Caller) -> None:
    await owner.come_online()
    first, second = await native.user("first", kudos=100), await native.user("second", kudos=100)
    ids = [await caller.submit_id() for caller in (first, second)]
    async with native.pool.acquire() as connection, connection.transaction():
        await connection.execute("UPDATE chat_requests SET held = 1")
        await connection.execute("UPDATE accounts SET balance = balance + 1 WHERE kind = 'held'")
    async with native.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "SELECT FROM accounts WHERE user_id = (SELECT user_id FROM chat_requests WHERE id = $1) FOR UPDATE",
            UUID(ids[1]),
        )
        await native.pool.execute(
            "UPDATE chat_requests SET expires_at = now() - make_interval(secs => CASE WHEN id = $1 THEN 2 ELSE 1 END)",
            UUID(ids[0]),
        )

        async def is_ended() -> bool:
            return bool((await first.status(ids[0]))["done"])

        # The second one's ending waits for its accounts; the first one's is committed and holds nothing any more.
        await wait_until(is_ended, description="the first request to end")
        assert not (await second.status(ids[1]))["done"]


_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$
"""


@pytest.mark.rule("WRK-4")
async def test_a_fault_that_was_taken_in_is_answered_so_whatever_fails_after_it(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    request_id = await client.submit_id()
    job = await owner.pop_job()
    await native.pool.execute(_REFUSE)
    await native.pool.execute("CREATE TRIGGER t BEFORE UPDATE ON workers FOR EACH ROW EXECUTE FUNCTION refuse()")
    assert (await owner.fault(job)).status == 200
    assert (await client.status(request_id))["restarted"] == 1


@pytest.mark.rule("NAT-9")
async def test_a_lease_that_was_renewed_is_answered_so_whatever_fails_after_it(
    migrated_database_url: str, unused_tcp_port: int
) -> None:
    async with running_native(migrated_database_url, f"redis://127.0.0.1:{unused_tcp_port}") as native:
        owner, client = await native.user("an owner"), await native.user("a client", kudos=10)
        await owner.come_online()
        await client.submit_id(stream=True)
        job = await owner.pop_job()
        await native.pool.execute(_REFUSE)
        await native.pool.execute(
            "CREATE TRIGGER t BEFORE UPDATE ON chat_jobs FOR EACH ROW WHEN (NEW.stream_broken) "
            "EXECUTE FUNCTION refuse()"
        )
        assert (await owner.progress(job["id"], 1, "text")).body == {"cancelled": False}


@pytest.mark.rule("CAN-11")
async def test_a_cancel_whose_status_cannot_be_read_cancels_nothing(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    request_id = await client.submit_id()
    await native.pool.execute("ALTER TABLE chat_replies RENAME TO elsewhere")
    assert (await client.cancel(request_id)).status == 503
    await native.pool.execute("ALTER TABLE elsewhere RENAME TO chat_replies")
    assert (await client.status(request_id))["waiting"] == 1
    assert (await client.cancel(request_id)).body["done"] is True


@pytest.mark.rule("NAT-14")
async def test_a_worker_put_into_maintenance_still_gets_the_answer_it_lost_and_nothing_new(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    await client.submit_id()
    pop_id = str(uuid4())
    job = await owner.pop_job(pop_id=pop_id)
    await client.submit_id()
    await owner.call("PUT", f"/v2/workers/{await native.worker_id()}", {"maintenance": True})

    assert (await owner.pop_job(pop_id=pop_id, running=[]))["id"] == job["id"]
    # A worker that does not know of the job any more gives it back, in maintenance too.
    assert (await owner.pop(running=[])).rc == "WorkerMaintenance"
    assert await native.pool.fetchval("SELECT count(*) FROM chat_requests WHERE state = 'waiting'") == 2


@pytest.mark.rule("NAT-13")
async def test_a_woken_pop_whose_client_left_passes_the_wake_up_on(migrated_database_url: str) -> None:
    settings = NativeSettings(database_url=SecretStr(migrated_database_url), relook_seconds=25.0)
    async with open_state(settings, asyncio.Event()) as state, asyncio.timeout(18), asyncio.TaskGroup() as group:
        number = await ensure_user(state.pool, "somebody", "a key", kudos=10)
        user = User(number, "somebody", trusted=False, moderator=False)
        left, pops = asyncio.Event(), []
        for name, gone in (("first", left), ("second", asyncio.Event())):
            body = parse_body(PopBody, pop_body(name=name, wait_seconds=20))
            pops.append(group.create_task(pop_job(state, user, body, gone, "http://horde"), name=f"test - {name} pop"))

            def waits(count: int = len(pops)) -> bool:
                return len(state.held_pops) == count and state.pool.get_idle_size() == state.pool.get_size()

            await wait_until(waits, description="the pop to be held")
        left.set()
        await submit_request(state, user, submit_body(), "test")
        assert (await pops[1]).brings_job
        assert not (await pops[0]).brings_job


@pytest.mark.rule("NAT-14")
async def test_a_worker_that_loses_its_jobs_again_and_again_comes_to_an_end(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    request_id = await client.submit_id()
    counted = []
    for _ in range(5):
        await owner.pop_job(running=[], pop_id=str(uuid4()))
        row = await native.pool.fetchrow("SELECT attempts, cardinality(failed_workers) AS failures FROM chat_requests")
        assert row is not None
        counted.append((row["attempts"], row["failures"]))
    # Two losses are free; the third and the fourth count, and the fifth job is the third attempt.
    assert counted == [(1, 0), (1, 0), (1, 0), (2, 1), (3, 2)]

    assert (await owner.pop(running=[])).body["id"] is None
    await native.pool.execute("UPDATE chat_jobs SET deadline_at = now() WHERE state = 'processing'")

    async def is_faulted() -> bool:
        return bool((await client.status(request_id))["faulted"])

    await wait_until(is_faulted, description="the request to fault")
    assert await broken_invariants(native.pool) == {}
