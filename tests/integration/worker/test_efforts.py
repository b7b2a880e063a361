"""Efforts: which way to tell them is found at start, and what a server without a way is spared."""

from contextlib import aclosing
from typing import Any

import pytest
from horde_sdk.worker.chat_declaration import ChatFinishReason, ChatJobPayload

from horde.worker.backends import recognise_backend
from horde.worker.backends.base import BackendProfile, GenerationFinished, ReasoningDelta, TextDelta
from horde.worker.backends.openai_compatible import BackendLocation, create_backend_session
from tests.support.scripted_model import Finish, Reason, Say, ScriptedModel, Step, tokens
from tests.support.scripted_pops import chat_job
from tests.support.scripted_talents import Talents
from tests.support.serving import Served

type Model = Served[ScriptedModel]

KEYS = ("reasoning_effort", "chat_template_kwargs", "thinking_token_budget")


async def serve(model: Model, **payload: Any) -> tuple[BackendProfile, str, str, GenerationFinished]:
    """Probe, then generate one reply; return the profile, content, reasoning and end."""
    location = BackendLocation(base_url=model.url)
    job = ChatJobPayload.from_pop(chat_job(max_length=400, **payload))
    async with create_backend_session(location) as session:
        backend = await recognise_backend(session, location)
        profile = await backend.probe()
        texts, thoughts, end = "", "", None
        async with aclosing(backend.generate(job, prompt_limit=4000)) as events:
            async for event in events:
                match event:
                    case TextDelta(text):
                        texts += text
                    case ReasoningDelta(text):
                        thoughts += text
                    case GenerationFinished():
                        end = event
    assert end is not None
    return profile, texts, thoughts, end


def told(model: Model) -> dict[str, Any]:
    [body] = model.server.bodies
    return {key: body[key] for key in KEYS if key in body}


@pytest.mark.rule("RSN-12", "WRK-6", "WRK-7")
async def test_an_effort_is_declared_and_told_when_the_model_was_seen_to_heed_it(model: Model) -> None:
    model.server.talents = Talents(thinks="as told")
    model.server.play(tokens("Yes"))
    profile, *_ = await serve(model, reasoning_effort="none")
    assert profile.facts.applies_reasoning_effort
    assert told(model) == {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.rule("RSN-12", "WRK-7")
@pytest.mark.parametrize(
    ("refused", "used"),
    [
        ("chat_template_kwargs", {"reasoning_effort": "low"}),
        ("reasoning_effort", {"chat_template_kwargs": {"enable_thinking": True}}),
    ],
)
async def test_keys_that_a_server_refuses_give_way_to_others(model: Model, refused: str, used: dict[str, Any]) -> None:
    model.server.talents = Talents(thinks="as told")
    model.server.refused_keys = frozenset({refused})
    model.server.play(tokens("Yes"))
    profile, *_ = await serve(model, reasoning_effort="low")
    assert profile.facts.applies_reasoning_effort
    assert told(model) == used


@pytest.mark.rule("RSN-11", "WRK-7")
@pytest.mark.parametrize("thinks", ["never", "always"])
async def test_a_model_that_thinks_as_it_likes_gets_no_effort_and_no_cap(model: Model, thinks: Any) -> None:
    model.server.owner = "vllm"
    model.server.talents = Talents(thinks=thinks)
    model.server.play([Reason("Hm. " * 300), Say("Yes"), Finish("stop")])
    profile, text, reasoning, _ = await serve(model, reasoning_effort="medium")
    assert not profile.facts.applies_reasoning_effort
    assert told(model) == {}
    assert (text, reasoning) == ("Yes", "Hm. " * 300)


@pytest.mark.rule("RSN-10", "RSN-13")
async def test_a_model_that_never_stops_thinking_is_closed_at_half_of_the_reply_and_answers(model: Model) -> None:
    model.server.owner = "vllm"
    model.server.talents = Talents(thinks="as told", overthinks=True)
    model.server.play(tokens("Yes"))
    profile, *_ = await serve(model, reasoning_effort="medium")
    assert profile.facts.applies_reasoning_effort
    [body] = model.server.bodies
    assert (body["max_tokens"], body["thinking_token_budget"]) == (400, 200)


@pytest.mark.rule("RSN-10", "WRK-7")
async def test_a_server_that_only_seems_to_take_a_budget_is_told_the_effort_alone(model: Model) -> None:
    model.server.owner = "koboldcpp"
    model.server.answers = {
        "/api/extra/version": {"vision": False},
        "/api/extra/true_max_context_length": {"value": 4096},
    }
    # An older KoboldCpp passes over the word, so its model thinks at `none` too.
    model.server.talents = Talents(thinks="always")
    model.server.play(tokens("Yes"))
    profile, *_ = await serve(model, reasoning_effort="medium")
    assert not profile.facts.applies_reasoning_effort


@pytest.mark.rule("WRK-3", "RSN-1")
@pytest.mark.parametrize("pieces", [["Hm.</thi", "nk>\nYes"], ["Hm.", "</think>", "\nYes"], ["Hm.</think>\nYes"]])
async def test_thinking_that_the_template_opened_is_split_off_wherever_its_end_is_cut(
    model: Model, pieces: list[str]
) -> None:
    model.server.talents = Talents(thinks="always", opens_thinking=True)
    script: list[Step] = [*map(Say, pieces), Finish("stop")]
    model.server.play(script)
    _, text, reasoning, _ = await serve(model)
    assert (text, reasoning) == ("Yes", "Hm.")


@pytest.mark.rule("RSN-12", "WRK-3")
async def test_a_template_that_opens_the_thinking_does_not_at_none(model: Model) -> None:
    model.server.talents = Talents(thinks="as told", opens_thinking=True)
    model.server.play(tokens("Yes"))
    profile, text, reasoning, _ = await serve(model, reasoning_effort="none")
    assert profile.facts.applies_reasoning_effort
    assert (text, reasoning) == ("Yes", "")


@pytest.mark.rule("WRK-3", "RSN-14")
async def test_a_reply_that_ends_while_it_thinks_is_reasoning_without_content(model: Model) -> None:
    model.server.play([Say("<think>Hm, "), Say("well"), Finish("length")])
    _, text, reasoning, end = await serve(model)
    assert (text, reasoning, end.finish_reason) == ("", "Hm, well", ChatFinishReason.LENGTH)
