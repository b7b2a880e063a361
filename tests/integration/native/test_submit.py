import asyncio
import threading
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature

from horde.chat_contract import KUDOS_CAP_EXCESS_PATTERN, VALIDATION_FAILED_MESSAGE, exceeds_depth
from horde.native import http
from tests.support.native_server import Caller, NativeServer, declaration, running_native, submit_body


@pytest.fixture(autouse=True)
async def _worker(owner: Caller) -> None:
    await owner.come_online()


async def _requests(native: NativeServer) -> int:
    return int(await native.pool.fetchval("SELECT count(*) FROM chat_requests"))


async def test_an_unknown_key_is_refused(native: NativeServer) -> None:
    answer = await native.caller("nobody's key").submit()
    assert (answer.status, answer.rc) == (401, "InvalidAPIKey")


async def test_the_anonymous_user_submits_without_a_key(native: NativeServer) -> None:
    assert (await native.caller().submit()).status == 202
    assert (await native.caller("0000000000").submit()).status == 202


@pytest.mark.rule("SUB-2")
async def test_a_copy_of_a_submit_finds_the_request_of_the_first(native: NativeServer, client: Caller) -> None:
    key = str(uuid4())
    first = await client.submit(operation_key=key)
    copy = await client.submit(operation_key=key)
    assert (first.status, copy.status) == (202, 200)
    assert copy.body == first.body
    assert await _requests(native) == 1


async def test_a_copy_is_answered_whatever_workers_say_by_now(native: NativeServer, client: Caller) -> None:
    key = str(uuid4())
    first = await client.submit(operation_key=key)
    await native.pool.execute("UPDATE workers SET last_seen_at = now() - interval '1 hour'")

    assert (await client.submit(operation_key=key)).body == first.body
    assert (await client.submit(operation_key=str(uuid4()))).rc == "NoOnlineChatWorker"


async def test_copies_that_arrive_together_make_one_request(native: NativeServer, client: Caller) -> None:
    key = str(uuid4())
    answers = await asyncio.gather(*(client.submit(operation_key=key, params={"max_length": 64}) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] * 7 + [202]
    assert len({answer.body["id"] for answer in answers}) == 1
    assert await _requests(native) == 1


async def test_another_body_under_the_same_key_is_a_conflict(client: Caller) -> None:
    key = str(uuid4())
    await client.submit(operation_key=key)
    answer = await client.submit(operation_key=key, stream=True)
    assert (answer.status, answer.rc) == (400, "ChatRequestConflict")


async def test_the_same_key_of_two_users_is_two_operations(native: NativeServer, client: Caller) -> None:
    key = str(uuid4())
    other = await native.user("other")
    assert (await client.submit(operation_key=key)).status == 202
    assert (await other.submit(operation_key=key)).status == 202


async def test_a_cancel_that_comes_before_its_submit_makes_it_fail(native: NativeServer, client: Caller) -> None:
    key = str(uuid4())
    assert (await client.cancel_operation(key)).body == {"tombstone": True}
    assert (await client.cancel_operation(key)).body == {"tombstone": True}
    answer = await client.submit(operation_key=key)
    assert (answer.status, answer.rc) == (409, "ChatOperationCancelled")
    assert await _requests(native) == 0


async def test_a_cancel_by_key_cancels_the_request_that_is_there(client: Caller) -> None:
    key = str(uuid4())
    request_id = await client.submit_id(operation_key=key)
    answer = await client.cancel_operation(key)
    assert (answer.status, answer.body["done"], answer.body["faulted"]) == (200, True, False)
    assert (await client.status(request_id))["done"]


async def test_a_submit_and_its_cancel_that_race_leave_no_live_request(native: NativeServer, client: Caller) -> None:
    for _ in range(20):
        key = str(uuid4())
        submitted, cancelled = await asyncio.gather(client.submit(operation_key=key), client.cancel_operation(key))
        assert cancelled.status == 200
        assert (submitted.status == 409) == (cancelled.body == {"tombstone": True})
    live = "SELECT count(*) FROM chat_requests WHERE state IN ('waiting', 'processing')"
    assert await native.pool.fetchval(live) == 0


async def test_a_dry_run_quotes_and_writes_nothing(native: NativeServer, client: Caller) -> None:
    answer = await client.submit(dry_run=True, params={"max_length": 512})
    assert (answer.status, answer.body) == (200, {"kudos": 24.38})
    assert await _requests(native) == 0


@pytest.mark.rule("NAT-2")
async def test_a_body_of_another_shape_is_answered_with_its_fields_and_no_code(client: Caller) -> None:
    answer = await client.submit(params={"top_p": 7, "max_length": 2})
    assert answer.status == 400
    assert answer.body["message"] == VALIDATION_FAILED_MESSAGE
    assert list(answer.body["errors"]) == ["top_p", "max_length"]
    assert "rc" not in answer.body


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"nonsense", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\ud800"}', b"\xff", b"[" * 5000]
)
async def test_a_body_that_is_no_json_object_is_a_bad_request(client: Caller, body: bytes) -> None:
    answer = await client.call("POST", "/v2/generate/chat", body)
    assert (answer.status, answer.rc) == (400, "BadRequest")


def _tool(parameters: object, **function: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **function}}


def _nested(levels: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": _nested(levels - 1)}} if levels else {"type": "string"}


@pytest.mark.rule("REQ-56")
@pytest.mark.parametrize(
    ("change", "rc"),
    [
        ({"tool_choice": "auto"}, "ChatRequestConflict"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "UnsupportedChatParameter"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            None,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"$ref": "http://127.0.0.1:1/x"}},
                }
            },
            "UnsupportedChatParameter",
        ),
        ({"response_format": {"type": "json_object"}, "openai_guards": True}, "ChatRequestConflict"),
        ({"parallel_tool_calls": False}, "ChatRequestConflict"),
        ({"tools": [_tool({"type": "object", "properties": {"a": {}}}, strict=True)]}, "UnsupportedChatParameter"),
        ({"tools": [_tool(_nested(11))]}, "UnsupportedChatParameter"),
        ({"tools": [_tool({"type": "object"})] * 129}, "UnsupportedChatParameter"),
    ],
)
async def test_the_shared_rules_are_applied(client: Caller, change: dict[str, Any], rc: str | None) -> None:
    answer = await client.submit(**change)
    assert answer.status == 400
    assert rc is None or answer.rc == rc


@pytest.mark.rule("NEW-1")
async def test_unknown_models_are_told_from_models_without_a_worker(native: NativeServer, client: Caller) -> None:
    unknown = await client.submit(models=["test/model-a", "test/other"])
    assert (unknown.status, unknown.rc) == (404, "UnknownChatModel")
    assert unknown.body["message"].startswith("'models[1]' ")

    await native.pool.execute("UPDATE workers SET last_seen_at = now() - interval '121 seconds'")
    offline = await client.submit()
    assert (offline.status, offline.rc) == (503, "NoOnlineChatWorker")
    assert offline.headers["retry-after"] == "30"


async def test_one_served_model_of_several_is_enough(native: NativeServer, client: Caller) -> None:
    await native.pool.execute("INSERT INTO models (name) VALUES ('test/idle')")
    assert (await client.submit(models=["test/idle", "test/model-a"])).status == 202


@pytest.mark.rule("IMG-10")
async def test_images_are_refused_where_there_is_no_storage(client: Caller) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    answer = await client.submit(messages=[{"role": "user", "content": [image]}])
    assert (answer.status, answer.rc) == (503, "ChatImageStorageUnavailable")


@pytest.mark.rule("CTX-1", "CTX-3", "CTX-6", "CTX-7", "RES-12", "RES-13", "RES-14")
async def test_adjustments_are_reported_and_the_job_carries_what_is_left(owner: Caller, client: Caller) -> None:
    long = {"role": "user", "content": "x" * 4 * 3000}
    answer = {"role": "assistant", "content": "ok"}
    request_id = await client.submit_id(
        messages=[long, answer, long, answer, long], params={"max_length": 4096, "max_context_length": 4096}
    )
    assert (await client.status(request_id))["context_adjustments"] == [
        {"from": 4096, "to": 8192, "reason": "grow"},
        {"reason": "truncate_oldest", "dropped_messages": 2},
        {"from": 4096, "to": 2048, "reason": "worker_max_length"},
    ]
    payload = (await owner.pop_job())["payload"]
    assert payload["messages"] == [long, answer, long]
    assert (payload["max_length"], payload["max_context_length"]) == (2048, 8192)


async def test_messages_that_cannot_be_made_to_fit_are_refused(client: Caller) -> None:
    long = [{"role": "user", "content": "x" * 4 * 9000}]
    for mode in ("truncate_oldest", "grow", "reject"):
        answer = await client.submit(messages=long, context_fit=mode)
        assert (answer.status, answer.rc) == (400, "PromptExceedsContext")


@pytest.mark.rule("KUD-2", "KUD-7", "KUD-8")
async def test_a_request_over_its_own_cap_is_refused_with_both_numbers(native: NativeServer, client: Caller) -> None:
    answer = await client.submit(max_kudos=24, params={"max_length": 512})
    assert (answer.status, answer.rc) == (400, "ChatKudosCapExceeded")
    found = KUDOS_CAP_EXCESS_PATTERN.match(answer.body["message"])
    assert found is not None
    assert (found["estimate"], found["cap"]) == ("24.38", "24")
    assert await _requests(native) == 0
    assert (await client.submit(max_kudos=25, params={"max_length": 512})).status == 202


@pytest.mark.rule("KUD-10", "KUD-12", "KUD-19")
async def test_above_the_free_allowance_the_price_is_held_or_the_request_refused(
    native: NativeServer, owner: Caller
) -> None:
    await owner.come_online(declared=declaration(max_length=16384), name="large")
    poor, rich = await native.user("poor", kudos=1), await native.user("rich", kudos=500)
    params = {"max_length": 8192}

    for caller in (poor, native.caller()):
        answer = await caller.submit(params=params)
        assert (answer.status, answer.rc) == (403, "KudosUpfront")
        assert "allowance of 4096 tokens" in answer.body["message"]
    assert await _requests(native) == 0

    assert (await rich.submit(params=params)).status == 202
    # 8192 tokens cost 390.10 kudos: a second such request is not covered any more.
    assert (await rich.call("GET", "/v2/find_user")).body["kudos"] == 109.90
    assert (await rich.submit(params=params)).rc == "KudosUpfront"


async def test_holds_that_race_never_spend_more_than_there_is(native: NativeServer, owner: Caller) -> None:
    await owner.come_online(declared=declaration(max_length=16384), name="large")
    rich = await native.user("rich", kudos=1000)
    answers = await asyncio.gather(*(rich.submit(params={"max_length": 8192}) for _ in range(10)))
    assert [answer.status for answer in answers].count(202) == 2
    assert (await rich.call("GET", "/v2/find_user")).body["kudos"] == 219.80


@pytest.mark.rule("SUB-2", "KUD-10")
async def test_copies_of_a_submit_that_arrive_together_are_one_request_though_one_is_all_that_is_covered(
    native: NativeServer, owner: Caller
) -> None:
    await owner.come_online(declared=declaration(max_length=16384), name="large")
    rich = await native.user("rich", kudos=500)
    for _ in range(5):
        key = str(uuid4())
        copies = (rich.submit(params={"max_length": 8192}, operation_key=key) for _ in range(4))
        answers = await asyncio.gather(*copies)
        assert sorted(answer.status for answer in answers) == [200, 200, 200, 202]
        assert len({answer.body["id"] for answer in answers}) == 1
        await rich.cancel(answers[0].body["id"])


@pytest.mark.rule("KUD-9")
async def test_the_quote_is_the_first_listed_models(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online(name="big", model="big-8B")
    small_first = await client.submit(models=["test/model-a", "big-8B"], dry_run=True, params={"max_length": 210})
    big_first = await client.submit(models=["big-8B", "test/model-a"], dry_run=True, params={"max_length": 210})
    assert (small_first.body, big_first.body) == ({"kudos": 10.0}, {"kudos": 80.0})
    assert await native.pool.fetchval("SELECT count(*) FROM models") == 2


async def test_texts_may_hold_nul_and_reach_the_worker_as_they_were_written(owner: Caller, client: Caller) -> None:
    content = "a\0b\u2028é😀"
    await client.submit_id(messages=[{"role": "user", "content": content}])
    job = await owner.pop_job()
    assert job["payload"]["messages"] == [{"role": "user", "content": content}]
    assert (await owner.reply(job, content)).status == 200


async def test_another_users_request_is_not_found(native: NativeServer, client: Caller) -> None:
    request_id = await client.submit_id()
    for caller in (native.caller(), await native.user("other")):
        answer = await caller.call("GET", f"/v2/generate/chat/status/{request_id}")
        assert (answer.status, answer.rc) == (404, "RequestNotFound")
        assert (await caller.cancel(request_id)).rc == "RequestNotFound"
    assert not (await client.status(request_id))["done"]


@pytest.mark.parametrize("request_id", ["nonsense", str(UUID(int=0)), "a%00b"])
async def test_an_id_that_nothing_has_is_not_found(client: Caller, request_id: str) -> None:
    assert (await client.cancel(request_id)).rc == "RequestNotFound"


async def test_a_body_over_the_limit_is_refused(migrated_database_url: str) -> None:
    async with running_native(migrated_database_url, max_body_bytes=1024) as small:
        answer = await small.caller().call("POST", "/v2/generate/chat", b" " * 1025)
        assert (answer.status, answer.rc) == (413, "RequestTooLarge")


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [
        ("POST", "/v2/generate/text/pop", 1024 * 1024),
        ("POST", "/v2/generate/chat/progress", 512 * 1024),
        ("POST", "/v2/generate/text/submit", 8 * 1024 * 1024),
        ("PUT", f"/v2/workers/{UUID(int=0)}", 64 * 1024),
    ],
)
async def test_each_route_reads_as_much_as_its_bodies_take(client: Caller, method: str, path: str, limit: int) -> None:
    assert (await client.call(method, path, b"{}".ljust(limit))).status == 400
    answer = await client.call(method, path, b"{}".ljust(limit + 1))
    assert (answer.status, answer.rc) == (413, "RequestTooLarge")


async def test_the_fullest_post_and_the_fullest_reply_are_within_what_is_read(owner: Caller, client: Caller) -> None:
    await client.submit_id(stream=True)
    job = await owner.pop_job()
    assert (await owner.progress(job["id"], 1, "\1" * 65536)).body == {"cancelled": False}
    assert (await owner.reply(job, "\1" * 1024 * 1024)).status == 200


async def test_a_large_body_is_decoded_off_the_loop(client: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    measure = exceeds_depth

    def observe(value: object, levels: int, *, values: int | None = None) -> bool:
        threads.append(threading.current_thread().name)
        return measure(value, levels, values=values)

    monkeypatch.setattr(http, "exceeds_depth", observe)
    for size in (1024 * 1024, 1024 * 1024 + 1):
        await client.call("POST", "/v2/generate/chat", b"{}".ljust(size))
    assert threads[0] == threading.main_thread().name
    assert threads[1] != threading.main_thread().name


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"messages": [' + b"1," * 200_000 + b"1]}",
        b'{"messages": [' + b'{"role":"user","content":"a"},' * 60_000 + b'{"role":"user","content":"a"}]}',
    ],
    ids=["deep", "many numbers", "many messages"],
)
async def test_a_body_with_too_much_structure_is_refused_before_it_is_validated(client: Caller, body: bytes) -> None:
    answer = await client.call("POST", "/v2/generate/chat", body)
    assert (answer.status, answer.rc) == (400, "BadRequest")


async def test_a_job_that_no_worker_would_read_is_refused(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online(declared=declaration(max_context_length=200_000))
    escaped = {"role": "user", "content": "a", "name": "\1" * 256}
    sent = {"messages": [escaped] * 9_000, "params": {"max_context_length": 200_000}}
    for dry_run in (True, False):
        answer = await client.submit(**sent, dry_run=dry_run)
        assert (answer.status, answer.rc) == (400, "BadRequest")
    assert await _requests(native) == 0


async def test_paths_and_methods_that_are_not_served_are_told_apart(client: Caller) -> None:
    assert (await client.call("GET", "/v2/nothing")).rc == "NotFound"
    assert (await client.call("PATCH", "/v2/generate/chat")).rc == "MethodNotAllowed"
    allowed = {"/v2/workers/x": "GET, HEAD, PUT", "/v2/generate/chat/status/x": "DELETE, GET, HEAD"}
    for path, methods in allowed.items():
        assert (await client.call("PATCH", path)).headers["allow"] == methods


@pytest.mark.rule("NAT-4", "NEW-20", "CNF-2", "CNF-3")
async def test_a_request_that_nobody_can_serve_says_why(owner: Caller, client: Caller) -> None:
    await owner.come_online(declared=declaration(without=["tool_choice_enforced", ChatFeature.SEED]))
    tools = [{"type": "function", "function": {"name": "f"}}]
    request_id = await client.submit_id(tools=tools, tool_choice="required", params={"seed": 1})
    status = await client.status(request_id)
    assert (status["is_possible"], status["eligible_workers"]) == (False, 0)
    assert status["impossible_reason"] == {
        "kind": "declaration_gap",
        "missing_declarations": ["seed", "tool_choice_enforced"],
        "exceeded_limits": [],
    }
    relaxed = await client.submit_id(tools=tools, tool_choice="required", conformance="best_effort")
    assert (await client.status(relaxed))["impossible_reason"] is None


@pytest.mark.rule("NEW-18")
async def test_an_explicit_context_above_every_declared_one_is_told_as_a_limit(client: Caller) -> None:
    request_id = await client.submit_id(params={"max_context_length": 9000})
    reason = (await client.status(request_id))["impossible_reason"]
    assert reason["exceeded_limits"] == ["max_context_length"]


@pytest.mark.rule("HOR-12", "HOR-11")
async def test_restrictions_narrow_the_workers_and_give_no_reason(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    worker_id = str(await native.worker_id())
    elsewhere = await client.submit_id(workers={"only": [str(uuid4())]})
    ignored = await client.submit_id(workers={"ignore": [worker_id]})
    trusted = await client.submit_id(trusted_workers=True)
    fast = await client.submit_id(slow_workers=False)
    for request_id in (elsewhere, ignored, trusted, fast):
        status = await client.status(request_id)
        assert (status["is_possible"], status["impossible_reason"]) == (False, None)
    here = await client.submit_id(workers={"only": [worker_id]})
    assert (await client.status(here))["eligible_worker_threads"] == 1
    job = await owner.pop_job()
    await owner.reply(job)
    assert (await client.status(here))["generations"][0]["worker_id"] == worker_id


async def test_the_body_is_stored_as_it_is_read(native: NativeServer, client: Caller) -> None:
    await client.call("POST", "/v2/generate/chat", submit_body(), **{"Client-Agent": "app:1:me"})
    row = await native.pool.fetchrow(
        "SELECT r.client_agent, p.body FROM chat_requests r JOIN chat_payloads p ON p.request_id = r.id"
    )
    assert row is not None
    assert row["client_agent"] == "app:1:me"
    assert orjson.loads(row["body"])["messages"] == [{"role": "user", "content": "Hello"}]
