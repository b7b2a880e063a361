"""What the service is as a whole: its routes, its boundaries, what it keeps of a request (rules GEN, SUB, WAI)."""

import asyncio

import pytest

from horde.oai.app import ROUTES
from tests.support.front import chat_body, running_front
from tests.support.scripted_horde import MODEL, Answer, generation, status
from tests.support.waiting import wait_until


@pytest.mark.rule("GEN-2")
def test_the_routes_are_the_documented_ones() -> None:
    assert {(route.path, *sorted(route.methods or ())) for route in ROUTES} == {
        ("/v1/chat/completions", "POST"),
        ("/v1/models", "GET", "HEAD"),
        ("/v1/models/{model_id:path}", "GET", "HEAD"),
        ("/healthz", "GET", "HEAD"),
        ("/readyz", "GET", "HEAD"),
        ("/openapi.json", "GET", "HEAD"),
        ("/docs", "GET", "HEAD"),
        ("/docs/{name}", "GET", "HEAD"),
    }


@pytest.mark.rule("GEN-8", "GEN-11", "MET-34")
async def test_a_delivered_request_makes_no_further_call_and_leaves_nothing_in_the_front() -> None:
    async with running_front() as front:
        await front.client.chat(chat_body()).json()
        assert [(call.method, call.path.rsplit("/", 2)[-2]) for call in front.horde.calls] == [
            ("POST", "generate"),
            ("GET", "status"),
        ]
        await wait_until(lambda: len(front.state.open_requests) == 0, description="nothing open")
        assert front.state.cancels.failed_count == 0


@pytest.mark.rule("GEN-9")
async def test_the_same_request_twice_is_two_requests() -> None:
    async with running_front() as front:
        for _ in range(2):
            await front.client.chat(chat_body()).json()
        assert len(front.horde.ids) == 2


@pytest.mark.rule("RES-8", "RSN-14")
async def test_a_reply_cut_at_its_limit_says_length() -> None:
    async with running_front() as front:
        cut = generation("", finish_reason="length", reasoning_content="Let me think about")
        front.horde.play(status("replied", cut))
        completion = await front.client.chat(chat_body()).json()
    choice = completion["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"] == {"role": "assistant", "content": "", "reasoning_content": "Let me think about"}
    assert "larger max_tokens" in completion["x_horde"]["notice"]


@pytest.mark.rule("DEV-8", "FMT-9")
async def test_a_json_mode_that_mentions_no_json_is_served_unless_openais_guard_is_asked_for() -> None:
    async with running_front() as front:
        body = chat_body(response_format={"type": "json_object"})
        assert await front.client.chat(body).status() == 200
        guarded = front.client.chat(body | {"horde": {"openai_guards": True}})
        assert await guarded.status() == 400
        error = (await guarded.json())["error"]
    assert (error["code"], error["param"]) == ("ChatRequestConflict", "messages")


@pytest.mark.rule("DEV-2")
async def test_paths_into_messages_have_no_dot_before_the_bracket() -> None:
    async with running_front() as front:
        body = chat_body(messages=[{"role": "user", "content": "a"}, {"role": "function", "content": "b"}])
        assert (await front.client.chat(body).json())["error"]["param"] == "messages[1].role"


@pytest.mark.rule("SUB-7")
@pytest.mark.parametrize(
    "body", [{"operation_key": "k"}, {"horde": {"operation_key": "k"}}, {"horde": {"dry_run": True}}]
)
async def test_a_client_cannot_send_an_operation_key(body: dict[str, object]) -> None:
    async with running_front() as front:
        exchange = front.client.chat(chat_body(**body))
        assert await exchange.status() == 400
        assert (await exchange.json())["error"]["code"] == "UnsupportedChatParameter"
        assert front.horde.calls == []


@pytest.mark.rule("SUB-8", "KUD-17")
async def test_whether_reasoning_is_shown_is_no_part_of_what_is_submitted() -> None:
    async with running_front() as front:
        for shown in (True, False):
            await front.client.chat(chat_body(horde={"include_reasoning": shown})).json()
        first, second = [
            {key: value for key, value in body.items() if key != "operation_key"} for body in front.horde.bodies
        ]
    assert first == second == {"messages": [{"role": "user", "content": "Hi"}], "models": [MODEL]}


@pytest.mark.rule("SUB-11")
async def test_a_native_call_waits_for_its_slot() -> None:
    async with running_front(call_slots=4) as front:
        release = asyncio.Event()
        front.horde.submits = [Answer(403, {"message": "no", "rc": "CorruptPrompt"}, held=release)]
        exchanges = [front.client.chat(chat_body()) for _ in range(6)]
        await wait_until(lambda: len(front.horde.bodies) == 4, description="four submits")
        assert front.state.limiter.in_use == 6
        release.set()
        assert {await exchange.status() for exchange in exchanges} == {403}
        assert len(front.horde.bodies) == 6


@pytest.mark.rule("WAI-3")
async def test_an_unclear_status_is_read_again_after_the_recheck_interval_not_the_polls() -> None:
    async with running_front(poll_seconds=60, signal_recheck_seconds=0.01) as front:
        front.horde.play(status("cancelled"), status("replied"))
        assert await front.client.chat(chat_body()).status() == 200


@pytest.mark.rule("NEW-15", "NEW-21", "NEW-22", "NEW-23", "FFA-18")
async def test_the_same_request_is_served_once_the_pool_has_changed() -> None:
    reason = {"kind": "declaration_gap", "missing_declarations": ["seed"], "exceeded_limits": []}
    async with running_front() as front:
        front.horde.statuses = [
            Answer(body=status("impossible", impossible_reason=reason)),
            Answer(body=status("queued", eligible_worker_threads=0)),
            Answer(body=status("replied")),
        ]
        body = chat_body(seed=1, horde={"availability_mode": "fail_fast"})
        assert [await front.client.chat(body).status() for _ in range(3)] == [404, 503, 200]


@pytest.mark.rule("RES-16")
async def test_the_price_shown_is_the_hordes_own() -> None:
    async with running_front() as front:
        prices = []
        for kudos in (3.1, 8.1):
            front.horde.restart([Answer(body=status("replied", generation(kudos=kudos)))])
            prices.append((await front.client.chat(chat_body()).json())["x_horde"]["kudos"])
    assert prices == [3.1, 8.1]
