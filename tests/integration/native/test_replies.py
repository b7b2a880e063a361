import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio
from horde_sdk.worker.chat_declaration import ChatFinishReason, ChatUsage

from horde.chat_contract import chat_stream_key
from tests.support.native_server import Caller, NativeServer
from tests.support.subscription import reading_signals
from tests.support.waiting import wait_until

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(autouse=True)
async def _worker(owner: Caller) -> None:
    await owner.come_online()


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.aclose()


async def _entries(store: redis.asyncio.Redis, request_id: str) -> list[dict[str, str]]:
    raw: Any = await store.xrange(chat_stream_key(request_id))
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in raw]


@pytest.mark.rule("NAT-9", "DLT-4")
async def test_progress_is_appended_to_the_stream_in_order(
    native: NativeServer, owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id(stream=True)
    job = await owner.pop_job()
    for seq, text in enumerate(("Hel", "lo"), start=1):
        assert (await owner.progress(job["id"], seq, text, reasoning="Hm.")).body == {"cancelled": False}

    worker = str(await native.worker_id())
    common = {"gen": job["id"], "worker": worker, "model": "test/model-a", "reasoning": "Hm."}
    assert await _entries(store, request_id) == [
        {**common, "seq": "1", "text": "Hel"},
        {**common, "seq": "2", "text": "lo"},
    ]
    assert 0 < await store.ttl(chat_stream_key(request_id)) <= 1200
    await owner.reply(job, "Hello")
    assert len(await _entries(store, request_id)) == 2


async def test_a_post_that_is_sent_again_is_appended_once(
    owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id(stream=True)
    job = await owner.pop_job()
    for seq in (1, 1, 2, 2):
        assert (await owner.progress(job["id"], seq, "x")).body == {"cancelled": False}
    assert [entry["seq"] for entry in await _entries(store, request_id)] == ["1", "2"]


async def test_after_a_gap_nothing_more_of_the_attempt_is_appended(
    owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id(stream=True)
    job = await owner.pop_job()
    for seq in (1, 3, 2, 4):
        assert (await owner.progress(job["id"], seq, "x")).body == {"cancelled": False}
    assert [entry["seq"] for entry in await _entries(store, request_id)] == ["1"]
    assert (await owner.reply(job)).status == 200


async def test_an_attempt_streams_a_mebibyte_and_its_reply_arrives_whole(
    native: NativeServer, owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id(stream=True)
    job = await owner.pop_job()
    text = "x" * 60_000
    for seq in range(1, 21):
        assert (await owner.progress(job["id"], seq, text)).body == {"cancelled": False}
    assert [entry["seq"] for entry in await _entries(store, request_id)] == [str(seq) for seq in range(1, 18)]
    assert await native.pool.fetchval("SELECT streamed_ascii FROM chat_jobs") == 17 * len(text)
    assert (await owner.reply(job, text * 17)).status == 200
    assert (await client.status(request_id))["generations"][0]["message"]["content"] == text * 17


async def test_a_request_that_does_not_stream_has_no_stream(
    owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id()
    job = await owner.pop_job()
    assert "stream_progress" not in job["payload"]
    await owner.progress(job["id"], 1, "x")
    await client.cancel(request_id)
    assert await _entries(store, request_id) == []


async def test_posts_of_strangers_and_large_posts_are_refused(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await client.submit_id(stream=True)
    job = await owner.pop_job()
    stranger = await native.user("stranger")
    assert (await stranger.progress(job["id"], 1, "x")).rc == "NotOwner"
    assert (await stranger.reply(job)).rc == "NotOwner"
    assert (await owner.progress(job["id"], 1, "x" * 65537)).rc == "BadRequest"
    assert (await owner.progress(str(uuid4()))).body == {"cancelled": True}
    assert (await owner.reply({**job, "id": str(uuid4())})).rc == "InvalidJobID"


async def test_a_lease_starts_with_the_first_post_and_ends_an_attempt_that_falls_silent(
    native: NativeServer, owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id(stream=True)
    job = await owner.pop_job()
    assert job["ttl"] > 31
    await owner.progress(job["id"], 1, "Hel")
    await native.make_time_pass(31)

    await wait_until(lambda: _is_waiting(client, request_id), description="the attempt to be swept")

    assert (await owner.progress(job["id"], 2, "lo")).body == {"cancelled": True}
    assert (await owner.reply(job)).rc == "InvalidJobID"
    await wait_until(
        lambda: _last(store, request_id, {"gen": job["id"], "ended": "lease_expired"}), description="the ended marker"
    )
    again = await owner.pop_job()
    await owner.progress(again["id"], 1, "Hello")
    assert (await _entries(store, request_id))[-1]["gen"] == again["id"]
    assert (await owner.reply(again)).status == 200


async def _is_waiting(client: Caller, request_id: str) -> bool:
    return bool((await client.status(request_id))["waiting"] == 1)


async def _last(store: redis.asyncio.Redis, request_id: str, expected: dict[str, str]) -> bool:
    entries = await _entries(store, request_id)
    return bool(entries) and entries[-1] == expected


async def test_three_attempts_that_run_out_fault_the_request(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    request_id = await client.submit_id()
    for _ in range(3):
        await owner.pop_job()
        await native.pool.execute("UPDATE chat_jobs SET deadline_at = now() - interval '1 second'")
        await wait_until(lambda: _nobody_runs(native), description="the attempt to be swept")
    status = await client.status(request_id)
    assert (status["done"], status["faulted"], status["fault"]["rc"]) == (True, True, "AbortedGen")
    assert (await owner.pop()).body["id"] is None


async def _nobody_runs(native: NativeServer) -> bool:
    return not await native.pool.fetchval("SELECT count(*) FROM chat_jobs WHERE state = 'processing'")


async def test_after_an_outage_leases_are_extended_before_any_is_ended(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await client.submit_id()
    job = await owner.pop_job()
    await owner.progress(job["id"])
    async with native.pool.acquire() as connection, connection.transaction():
        # As after 40 s in which nobody could post or sweep.
        await connection.execute("UPDATE chat_jobs SET deadline_at = deadline_at - interval '40 seconds'")
        await connection.execute("UPDATE horde_state SET swept_at = now() - interval '40 seconds'")
    swept = "SELECT swept_at > now() - interval '1 second' FROM horde_state"
    await wait_until(lambda: native.pool.fetchval(swept), description="a sweep")
    assert (await owner.progress(job["id"])).body == {"cancelled": False}
    assert (await owner.reply(job)).status == 200


@pytest.mark.rule("NAT-11")
async def test_a_request_expires_after_twenty_minutes_and_is_deleted_after_forty(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    waiting, running = await client.submit_id(), await client.submit_id()
    jobs = [await owner.pop_job()]
    await native.make_time_pass(1201)
    for request_id in (waiting, running):
        await wait_until(lambda r=request_id: _is_done(client, r), description="the request to expire")
        status = await client.status(request_id)
        assert (status["faulted"], status["fault"]["rc"]) == (True, "RequestExpired")
    assert (await owner.reply(jobs[0])).rc == "InvalidJobID"
    await native.make_time_pass(1201)
    count = "SELECT count(*) = 0 FROM chat_requests"
    await wait_until(lambda: native.pool.fetchval(count), description="the records to be deleted")
    answer = await client.call("GET", f"/v2/generate/chat/status/{waiting}")
    assert answer.rc == "RequestNotFound"


async def _is_done(client: Caller, request_id: str) -> bool:
    return bool((await client.status(request_id))["done"])


async def test_a_second_submit_of_a_job_is_a_duplicate_and_changes_nothing(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    request_id = await client.submit_id()
    job = await owner.pop_job()
    answers = await asyncio.gather(*(owner.reply(job, f"Reply {n}") for n in range(6)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 5
    first = await client.status(request_id)
    for again in (await owner.reply(job, "Another"), await owner.fault(job)):
        assert (again.status, again.rc) == (409, "DuplicateGen")
    assert await client.status(request_id) == first
    assert await native.pool.fetchval("SELECT count(*) FROM ledger WHERE kind = 'charge'") == 1


async def test_a_reply_and_a_cancel_that_race_agree(native: NativeServer, owner: Caller, client: Caller) -> None:
    for _ in range(10):
        request_id = await client.submit_id()
        job = await owner.pop_job()
        reply, cancelled = await asyncio.gather(owner.reply(job), client.cancel(request_id))
        assert (reply.status == 200) == (cancelled.body["finished"] == 1)
        assert reply.status == 200 or reply.rc == "InvalidJobID"
    charges = await native.pool.fetchval("SELECT count(*) FROM ledger WHERE kind = 'charge'")
    assert charges == await native.pool.fetchval("SELECT count(*) FROM chat_replies")


@pytest.mark.rule("CNF-10", "CNF-11", "NAT-12")
async def test_a_reply_that_does_not_conform_is_refused_and_the_request_queued_again(
    owner: Caller, client: Caller
) -> None:
    request_id = await client.submit_id(response_format={"type": "json_object"})
    job = await owner.pop_job()
    refused = await owner.reply(job, "not json")
    assert (refused.status, refused.rc) == (400, "ChatSubmitNonconformant")
    assert (await owner.fault(job, "reply_refused")).status == 200
    assert await _is_waiting(client, request_id)

    for _ in range(2):
        await owner.reply(await owner.pop_job(), "not json")
    status = await client.status(request_id)
    assert (status["faulted"], status["fault"]["rc"]) == (True, "ChatSubmitNonconformant")


@pytest.mark.rule("CNF-6", "HOR-8")
async def test_under_best_effort_replies_pass_unverified(owner: Caller, client: Caller) -> None:
    request_id = await client.submit_id(response_format={"type": "json_object"}, conformance="best_effort")
    assert (await owner.reply(await owner.pop_job(), "not json")).status == 200
    assert (await client.status(request_id))["generations"][0]["message"]["content"] == "not json"


@pytest.mark.rule("TOO-11", "TOO-22")
async def test_without_parallel_calls_the_first_call_is_delivered(owner: Caller, client: Caller) -> None:
    request_id = await client.submit_id(tools=_TOOLS, parallel_tool_calls=False)
    message = {"content": None, "tool_calls": [_CALL, {**_CALL, "id": "call_2"}]}
    job = await owner.pop_job()
    await owner.reply(job, message=message, finish_reason=ChatFinishReason.TOOL_CALLS, native_finish_reason="eos")
    generation = (await client.status(request_id))["generations"][0]
    assert generation["message"] == {"role": "assistant", "content": None, "tool_calls": [_CALL]}
    assert (generation["finish_reason"], generation["native_finish_reason"]) == ("tool_calls", "eos")


async def test_other_workers_try_a_failed_request_first(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online(name="worker-2")
    await client.submit_id()
    await owner.fault(await owner.pop_job())
    assert (await owner.pop()).body["id"] is None
    again = await owner.pop_job(name="worker-2")
    await owner.fault(again)
    # Both failed it: the one that asks gets it.
    assert (await owner.pop_job())["id"]
    assert await native.pool.fetchval("SELECT attempts FROM chat_requests") == 3


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [("prompt_overflow", 1), ("unbuildable_grammar", 1), ("tool_violation", 3), ("unheard_of", 3)],
)
@pytest.mark.rule("NAT-12")
async def test_a_fault_is_told_in_the_hordes_own_words(
    owner: Caller, client: Caller, reason: str, attempts: int
) -> None:
    request_id = await client.submit_id()
    for _ in range(attempts):
        assert (await owner.fault(await owner.pop_job(), reason)).body == {"reward": 0.0}
    status = await client.status(request_id)
    assert (status["faulted"], status["fault"]["rc"]) == (True, "ChatWorkerFault")
    assert reason not in status["fault"]["message"]


@pytest.mark.rule("KUD-14", "KUD-15", "RES-20")
async def test_the_charge_follows_the_reply_that_the_horde_measures(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await client.submit_id()
    job = await owner.pop_job()
    message = {"content": "x" * 400, "reasoning_content": "y" * 440}
    reply = await owner.reply(job, message=message, usage=ChatUsage(completion_tokens=100_000))
    assert reply.body == {"reward": 10.0}
    assert (await client.call("GET", "/v2/find_user")).body["kudos"] == 990.0
    assert (await owner.call("GET", "/v2/find_user")).body["kudos"] == 10.0

    await client.submit_id(params={"max_length": 21})
    assert (await owner.reply(await owner.pop_job(), "x" * 4000)).body == {"reward": 1.0}

    await native.caller().submit_id(params={"max_length": 21})
    assert (await owner.reply(await owner.pop_job(), "x" * 84)).body == {"reward": 1.0}
    assert (await native.caller().call("GET", "/v2/find_user")).body["kudos"] == 0.0
    assert await native.pool.fetchval("SELECT sum(balance) FROM accounts") == 0


@pytest.mark.rule("KUD-16", "CAN-11", "CAN-12", "DLT-30")
async def test_a_cancel_costs_what_was_streamed_and_marks_the_end(
    owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    request_id = await client.submit_id(stream=True)
    job = await owner.pop_job()
    await owner.progress(job["id"], 1, "x" * 42)
    await owner.progress(job["id"], 2, "x" * 42)
    await owner.progress(job["id"], 2, "x" * 42)
    first = await client.cancel(request_id)
    assert (first.body["done"], first.body["faulted"], first.body["kudos"]) == (True, False, 1.0)
    assert (await client.cancel(request_id)).body == first.body
    assert (await _entries(store, request_id))[-1] == {"gen": job["id"], "ended": "cancelled"}
    assert (await owner.progress(job["id"], 3, "x")).body == {"cancelled": True}
    assert (await owner.reply(job)).rc == "InvalidJobID"
    assert (await client.call("GET", "/v2/find_user")).body["kudos"] == 999.0


async def test_a_cancel_before_anything_was_streamed_costs_nothing(owner: Caller, client: Caller) -> None:
    waiting = await client.submit_id(params={"max_length": 512})
    await client.cancel(waiting)
    whole = await client.submit_id()
    await owner.progress((await owner.pop_job())["id"], 1, "x" * 100)
    await client.cancel(whole)
    assert (await client.call("GET", "/v2/find_user")).body["kudos"] == 1000.0
    assert (await owner.pop()).body["id"] is None


@pytest.mark.rule("NAT-8", "CAN-13")
async def test_each_step_is_signalled_after_it_is_true(
    owner: Caller, client: Caller, store: redis.asyncio.Redis
) -> None:
    async with reading_signals(store) as signals:
        replied = await client.submit_id()
        await owner.fault(await owner.pop_job())
        await owner.reply(await owner.pop_job())
        cancelled = await client.submit_id()
        await client.cancel(cancelled)
        faulted = await client.submit_id()
        await owner.fault(await owner.pop_job(), "prompt_overflow")

        seen = [await signals.next() for _ in range(7)]
    assert seen == [
        (replied, "started"),
        (replied, "requeued"),
        (replied, "started"),
        (replied, "finished"),
        (cancelled, "cancelled"),
        (faulted, "started"),
        (faulted, "faulted"),
    ]


@pytest.mark.rule("NAT-3", "NAT-7", "FFA-12")
async def test_a_status_has_a_position_once_a_snapshot_holds_the_request(client: Caller) -> None:
    first, second = await client.submit_id(), await client.submit_id()

    async def counted() -> bool:
        return bool((await client.status(second))["queue_position"])

    await wait_until(counted, description="a snapshot")
    one, two = await client.status(first), await client.status(second)
    assert (one["queue_position"], two["queue_position"]) == (1, 2)
    assert (one["wait_time"], two["wait_time"]) == (0, 51)
    assert (two["eligible_workers"], two["eligible_worker_threads"], two["is_possible"]) == (1, 1, True)


async def test_large_and_wrong_replies(owner: Caller, client: Caller) -> None:
    request_id = await client.submit_id()
    job = await owner.pop_job()
    assert (await owner.reply({**job, "model": "another"})).body["errors"]
    unknown = await owner.call("POST", "/v2/generate/text/submit", {"id": job["id"], "finish_reason": "stop"})
    assert list(unknown.body["errors"]) == ["model_id", "message"]
    assert (await client.status(request_id))["processing"] == 1
    large = await owner.reply(job, "x" * (1024 * 1024 + 1))
    assert large.rc == "ChatSubmitNonconformant"
