import asyncio
from typing import Any
from uuid import uuid4

import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature

from tests.support.native_server import Caller, NativeServer, declaration, running_native
from tests.support.waiting import wait_until


@pytest.mark.rule("NAT-14", "NAT-10")
async def test_each_pop_mints_a_new_job_and_two_workers_never_get_one(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    ids = {await client.submit_id(params={"max_length": 64}) for _ in range(10)}

    answers = await asyncio.gather(*(owner.pop(name=f"worker-{n}") for n in range(20)))

    jobs = [answer.body["id"] for answer in answers if answer.body["id"] is not None]
    # A pop that lost its candidate to another may come back empty; the next one finds what is left.
    while (answer := await owner.pop()).body["id"] is not None:
        jobs.append(answer.body["id"])
    assert len(set(jobs)) == len(jobs) == 10
    rows = await native.pool.fetch("SELECT request_id FROM chat_jobs")
    assert {str(row["request_id"]) for row in rows} == ids


async def test_a_job_has_what_the_contract_says(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    await client.submit_id(stream=True, params={"max_length": 64, "seed": 3})
    job = await owner.pop_job()
    assert job["progress"] == {"interval_seconds": 1.0, "lease_seconds": 30.0}
    assert 30 < job["ttl"] < 1200
    assert job["payload"]["stream_progress"] is True
    assert job["payload"]["seed"] == 3


@pytest.mark.rule("RSN-9")
async def test_a_worker_that_declares_reasoning_effort_receives_medium_when_none_was_sent(
    owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    await client.submit_id()
    assert (await owner.pop_job())["payload"]["reasoning_effort"] == "medium"
    await client.submit_id(params={"reasoning_effort": "none"})
    assert (await owner.pop_job())["payload"]["reasoning_effort"] == "none"
    await client.submit_id()
    plain = await owner.pop_job(declared=declaration(without=ChatFeature.REASONING_EFFORT))
    assert "reasoning_effort" not in plain["payload"]


@pytest.mark.rule("RSN-8")
async def test_any_effort_needs_a_worker_that_declares_it(owner: Caller, client: Caller) -> None:
    await owner.come_online(declared=declaration(without=ChatFeature.REASONING_EFFORT))
    request_id = await client.submit_id(params={"reasoning_effort": "none"})
    reason = (await client.status(request_id))["impossible_reason"]
    assert reason["missing_declarations"] == ["reasoning_effort"]


@pytest.mark.rule("NAT-18", "KUD-18")
async def test_users_with_kudos_go_first_and_the_anonymous_user_last(native: NativeServer, owner: Caller) -> None:
    await owner.come_online()
    poor, some, rich = await native.user("a"), await native.user("b", kudos=10), await native.user("c", kudos=100)
    order = [native.caller(), poor, some, rich]
    for number, caller in enumerate(order):
        await caller.submit_id(messages=[{"role": "user", "content": str(number)}])
    await rich.submit_id(messages=[{"role": "user", "content": "4"}])

    served = [(await owner.pop_job())["payload"]["messages"][0]["content"] for _ in range(5)]
    assert served == ["3", "4", "2", "1", "0"]


async def test_a_pop_without_a_job_tells_what_it_was_passed_over_for(owner: Caller, client: Caller) -> None:
    await owner.come_online(name="able")
    await client.submit_id(params={"max_length": 1000, "seed": 1})

    async def skipped() -> bool:
        answer = await owner.pop(declared=declaration(without=ChatFeature.SEED, max_length=100))
        assert answer.body["id"] is None
        return bool(answer.body["skipped"] == {"missing_declarations": 1, "max_length": 1})

    await wait_until(skipped, description="the causes from a snapshot")


async def test_a_pop_that_is_sent_again_gets_the_same_job(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    await client.submit_id()
    await client.submit_id()
    pop_id = str(uuid4())
    first = await owner.pop_job(pop_id=pop_id)
    assert await owner.pop_job(pop_id=pop_id) == first
    await owner.reply(first)
    assert (await owner.pop(pop_id=pop_id)).body["id"] is None
    assert (await owner.pop_job())["id"] != first["id"]


async def test_copies_of_a_pop_that_arrive_together_get_one_job(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    for _ in range(4):
        await client.submit_id()
    pop_id = str(uuid4())
    answers = await asyncio.gather(*(owner.pop(pop_id=pop_id) for _ in range(4)))
    assert len({answer.body["id"] for answer in answers}) == 1


async def test_a_job_that_its_worker_does_not_know_of_goes_back_without_counting(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    request_id = await client.submit_id()
    lost = await owner.pop_job()
    await owner.come_online(running=[lost["id"]])

    again = await owner.pop_job(running=[])

    assert again["id"] != lost["id"]
    assert await native.pool.fetchval("SELECT attempts FROM chat_requests") == 1
    assert (await owner.reply(lost)).rc == "InvalidJobID"
    assert (await owner.reply(again)).status == 200
    assert (await client.status(request_id))["restarted"] == 1


async def test_a_job_that_was_posted_for_stays(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    await client.submit_id()
    job = await owner.pop_job()
    await owner.progress(job["id"])
    assert (await owner.pop(running=[])).body["id"] is None
    assert (await owner.reply(job)).status == 200


async def test_a_held_pop_is_woken_by_a_submit_that_fits(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online(name="first")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        pop = group.create_task(owner.pop_job(wait_seconds=25), name="test - held pop")
        held = "SELECT true FROM workers WHERE name = 'worker-1'"
        await wait_until(lambda: native.pool.fetchval(held), description="the pop to be held")
        await client.submit_id()
        job = await pop
    assert (await owner.reply(job)).status == 200


async def test_a_held_pop_is_woken_by_a_submit_to_another_process(
    native: NativeServer, migrated_database_url: str, redis_url: str, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    async with running_native(migrated_database_url, redis_url, relook_seconds=25.0) as second:
        elsewhere = second.caller(owner.api_key)
        async with asyncio.timeout(18), asyncio.TaskGroup() as group:
            await native.pool.execute("UPDATE workers SET last_seen_at = now() - interval '60 seconds'")
            pop = group.create_task(elsewhere.pop_job(wait_seconds=20), name="test - held pop")
            seen = "SELECT last_seen_at > now() - interval '40 seconds' FROM workers"
            await wait_until(lambda: native.pool.fetchval(seen), description="the pop to be held")
            await client.submit_id()
            assert (await pop)["id"]


async def test_a_held_pop_ends_empty_after_its_wait_and_at_shutdown(native: NativeServer, owner: Caller) -> None:
    assert (await owner.pop(wait_seconds=0.2)).body["id"] is None
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        pop = group.create_task(owner.pop(wait_seconds=25), name="test - held pop")
        await wait_until(lambda: native.pool.fetchval("SELECT true FROM workers"), description="the pop to be held")
        native.stopping.set()
        assert (await pop).body["id"] is None


async def test_a_held_pop_whose_client_left_takes_no_job(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online()
    pop = asyncio.create_task(owner.pop(name="gone", wait_seconds=25), name="test - held pop")
    held = "SELECT true FROM workers WHERE name = 'gone'"
    await wait_until(lambda: native.pool.fetchval(held), description="the pop to be held")
    pop.cancel()
    await asyncio.gather(pop, return_exceptions=True)

    await client.submit_id()
    job = await owner.pop_job(wait_seconds=20)
    assert (
        await native.pool.fetchval("SELECT w.name FROM chat_jobs j JOIN workers w ON w.id = j.worker_id") == "worker-1"
    )
    await owner.reply(job)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": ""}, 400),
        ({"name": "a\0b"}, 400),
        ({"threads": 0}, 400),
        ({"wait_seconds": 26}, 400),
        ({"model_id": "another"}, 400),
        ({"pop_id": "no"}, 400),
        ({"chat_limits": {"max_length": 1}}, 400),
        ({"chat_features": ["unheard_of"]}, 200),
    ],
)
async def test_a_pop_of_another_shape_is_refused(owner: Caller, change: dict[str, Any], status: int) -> None:
    answer = await owner.pop(**change)
    assert answer.status == status
    assert status == 200 or "errors" in answer.body


async def test_who_may_own_which_worker(native: NativeServer, owner: Caller) -> None:
    await owner.come_online()
    assert (await native.caller().pop()).rc == "AnonForbiddenWorker"
    assert (await (await native.user("other")).pop()).rc == "NotOwner"


async def test_a_worker_in_maintenance_is_withdrawn(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online()
    path = f"/v2/workers/{await native.worker_id()}"
    assert (await client.call("PUT", path, {"maintenance": True})).rc == "NotOwner"
    changed = await owner.call("PUT", path, {"maintenance": True})
    assert (changed.status, changed.body["maintenance_mode"]) == (200, True)
    assert (await owner.pop()).rc == "WorkerMaintenance"
    assert (await client.submit()).rc == "NoOnlineChatWorker"
    moderator = await native.user("moderator", moderator=True)
    assert (await moderator.call("PUT", path, {"maintenance": False})).status == 200
    assert (await client.submit()).status == 202


async def test_a_pop_without_chat_jobs_withdraws_the_declaration(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    await owner.call("POST", "/v2/generate/text/pop", {"name": "worker-1", "models": [], "chat_jobs": False})
    assert (await client.submit()).rc == "NoOnlineChatWorker"


async def test_a_worker_that_is_silent_is_offline_unless_its_job_still_has_time(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    await client.submit_id()
    await owner.pop_job()
    await native.pool.execute("UPDATE workers SET last_seen_at = now() - interval '1 hour'")
    assert (await client.submit()).status == 202
    await native.pool.execute("UPDATE chat_jobs SET deadline_at = now() + interval '100 milliseconds'")
    await wait_until(lambda: _nobody_runs(native), description="the job's time to run out")
    assert (await client.submit()).rc == "NoOnlineChatWorker"


async def _nobody_runs(native: NativeServer) -> bool:
    return not await native.pool.fetchval("SELECT count(*) FROM chat_jobs WHERE state = 'processing'")


@pytest.mark.rule("MDL-16")
async def test_the_model_list_has_maxima_and_the_union_over_online_workers(native: NativeServer, owner: Caller) -> None:
    await owner.come_online(declared=declaration(without=ChatFeature.SEED, max_length=100), threads=2)
    await owner.come_online(
        name="worker-2", declared=declaration(without=ChatFeature.TOOLS, max_context_length=100), threads=3
    )
    await native.pool.execute("INSERT INTO models (name) VALUES ('test/idle')")

    answer = await native.caller().call("GET", "/v2/status/models?type=text")

    by_name = {entry["name"]: entry for entry in answer.body}
    assert by_name["test/idle"]["chat"] is None
    assert by_name["test/idle"]["count"] == 0
    chat = by_name["test/model-a"]["chat"]
    assert (chat["workers"], chat["threads"]) == (2, 5)
    assert (chat["max_context_length"], chat["max_length"]) == (8192, 2048)
    assert {"seed", "tools", "prompt_overflow_refused"} <= set(chat["features"])


async def test_probes_answer(native: NativeServer) -> None:
    for path, expected in {"/healthz": {"status": "ok"}, "/readyz": {"status": "ok"}}.items():
        async with native.session.get(native.base_url + path) as response:
            assert (response.status, await response.json()) == (200, expected)
    assert (await native.caller().call("GET", "/v2/status/heartbeat")).status == 200
