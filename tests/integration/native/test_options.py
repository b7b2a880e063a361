"""What a request asks of workers by its options, and which workers get it."""

from typing import Any

import openai
import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatGuarantee
from horde_sdk.worker.chat_declaration import ChatFaultReason, ChatFinishReason

from tests.integration.conftest import Chain
from tests.support.native_server import MODEL, Caller, declaration

_TOOLS = [{"type": "function", "function": {"name": "lookup"}}]
_CALL = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
_ASKED = {"role": "user", "content": "Answer in JSON"}
_HISTORY = [
    _ASKED,
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
]
_JSON = {"type": "json_object"}


async def _missing(client: Caller, **body: Any) -> list[str]:
    status = await client.status(await client.submit_id(**body))
    return list(status["impossible_reason"]["missing_declarations"])


@pytest.mark.rule("TOO-21")
@pytest.mark.parametrize(
    "body",
    [{"tools": _TOOLS}, {"messages": _HISTORY}, {"tools": _TOOLS, "messages": _HISTORY, "tool_choice": "none"}],
    ids=["offered", "in the history", "in the history of a request that offers none"],
)
async def test_tools_and_tool_turns_need_a_worker_that_renders_them(
    owner: Caller, client: Caller, body: dict[str, Any]
) -> None:
    await owner.come_online(declared=declaration(without=ChatFeature.TOOLS))

    assert await _missing(client, **body) == ["tools"]
    assert (await owner.pop(declared=declaration(without=ChatFeature.TOOLS))).body["id"] is None
    await owner.pop_job(name="worker-2")


@pytest.mark.rule("TOO-21")
async def test_tools_that_may_not_be_called_need_no_worker_that_renders_them(owner: Caller, client: Caller) -> None:
    plain = declaration(without=ChatFeature.TOOLS)
    await owner.come_online(declared=plain)

    await client.submit_id(tools=_TOOLS, tool_choice="none")

    assert "tools" not in (await owner.pop_job(declared=plain))["payload"]


@pytest.mark.rule("FMT-8")
@pytest.mark.parametrize("conformance", ["strict", "best_effort"])
async def test_tools_and_a_format_together_need_a_worker_that_declares_both_together(
    owner: Caller, client: Caller, conformance: str
) -> None:
    apart = declaration(without=ChatFeature.TOOLS_WITH_RESPONSE_FORMAT)
    await owner.come_online(declared=apart)
    both = {"messages": [_ASKED], "tools": _TOOLS, "response_format": _JSON, "conformance": conformance}

    assert await _missing(client, **both) == ["tools_with_response_format"]

    await client.submit_id(**{**both, "tool_choice": "none"})
    assert (await owner.pop_job(declared=apart))["payload"]["response_format"] == _JSON
    assert (await owner.pop_job(name="worker-2"))["payload"]["tools"] == _TOOLS


@pytest.mark.rule("FMT-8")
async def test_a_client_whose_tools_and_format_nobody_serves_together_hears_it_at_once(chain: Chain) -> None:
    await chain.worker.come_online(declared=declaration(without=ChatFeature.TOOLS_WITH_RESPONSE_FORMAT))
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Answer in JSON"}],
                tools=[{"type": "function", "function": {"name": "lookup"}}],
                response_format={"type": "json_object"},
            )

    assert refused.value.code == "no_worker_supports_features"
    assert await chain.native.pool.fetchval("SELECT state FROM chat_requests") == "cancelled"


@pytest.mark.rule("CTX-11")
async def test_a_strict_request_goes_to_workers_alone_that_refuse_a_prompt_that_does_not_fit(
    owner: Caller, client: Caller
) -> None:
    trimming = declaration(without=ChatGuarantee.PROMPT_OVERFLOW_REFUSED)
    await owner.come_online(declared=trimming)

    assert await _missing(client) == ["prompt_overflow_refused"]

    request_id = await client.submit_id(conformance="best_effort")
    await owner.reply(await owner.pop_job(declared=trimming))
    assert (await client.status(request_id))["finished"] == 1


@pytest.mark.rule("CTX-11")
async def test_a_prompt_that_a_worker_refuses_as_too_long_faults_the_request_at_once(
    owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    request_id = await client.submit_id()

    await owner.fault(await owner.pop_job(), ChatFaultReason.PROMPT_OVERFLOW.value)

    status = await client.status(request_id)
    assert (status["faulted"], status["restarted"]) == (True, 0)
    assert status["fault"]["message"] == "The worker could not fit the prompt into its context."


@pytest.mark.rule("HOR-10")
async def test_how_a_conversation_is_fitted_is_the_clients_choice(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    long = {"role": "user", "content": "x" * 4 * 3000}
    answer = {"role": "assistant", "content": "ok"}
    two, three = [long, answer, long], [long, answer, long, answer, long]

    async def fitted(messages: list[dict[str, str]], **choice: str) -> list[str]:
        status = await client.status(await client.submit_id(messages=messages, **choice))
        return [entry["reason"] for entry in status["context_adjustments"]]

    assert await fitted(three) == await fitted(three, context_fit="truncate_oldest") == ["grow", "truncate_oldest"]
    assert await fitted(two, context_fit="grow") == ["grow"]
    for messages, choice in ((three, "grow"), (two, "reject")):
        assert (await client.submit(messages=messages, context_fit=choice)).rc == "PromptExceedsContext"


@pytest.mark.rule("RES-7")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "lookup"}}])
@pytest.mark.parametrize("finish", [ChatFinishReason.STOP, ChatFinishReason.TOOL_CALLS])
async def test_a_call_that_was_forced_may_finish_as_a_text_does(
    owner: Caller, client: Caller, choice: object, finish: ChatFinishReason
) -> None:
    await owner.come_online()
    request_id = await client.submit_id(tools=_TOOLS, tool_choice=choice)

    reply = await owner.reply(
        await owner.pop_job(), message={"content": None, "tool_calls": [_CALL]}, finish_reason=finish
    )

    assert reply.status == 200
    generation = (await client.status(request_id))["generations"][0]
    assert (generation["finish_reason"], generation["message"]["tool_calls"]) == (finish.value, [_CALL])


@pytest.mark.rule("REQ-46", "RSN-13")
async def test_reasoning_and_answer_share_the_one_limit_of_a_request(owner: Caller, client: Caller) -> None:
    await owner.come_online()
    await client.submit_id(params={"max_length": 42})
    job = await owner.pop_job()
    lengths = {key: value for key, value in job["payload"].items() if key.endswith("length")}
    assert lengths == {"max_length": 42, "max_context_length": 4096}

    # Thirty tokens of each: together they are over the limit, and no more than the limit is paid.
    message = {"content": "x" * 120, "reasoning_content": "y" * 120}
    assert (await owner.reply(job, message=message, finish_reason=ChatFinishReason.LENGTH)).body == {"reward": 2.0}


@pytest.mark.rule("RSN-11", "RSN-12")
async def test_an_effort_reaches_the_worker_as_it_was_asked_for_and_no_worker_that_has_none(
    owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    for effort in ("none", "low", "high"):
        await client.submit_id(params={"reasoning_effort": effort})
        assert (await owner.pop_job())["payload"]["reasoning_effort"] == effort

    await client.submit_id()
    plain = await owner.pop_job(declared=declaration(without=ChatFeature.REASONING_EFFORT))
    assert "reasoning_effort" not in plain["payload"]
