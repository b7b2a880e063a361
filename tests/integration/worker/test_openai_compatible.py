"""A model server of unknown kind: what is asked of it and what is made of its answers."""

from contextlib import aclosing
from typing import Literal

import pytest
from horde_sdk.worker.chat_declaration import ChatJobPayload

from horde.worker.backends import recognise_backend
from horde.worker.backends.base import BackendError, BackendUnavailableError
from horde.worker.backends.llama_cpp import LlamaCppBackend
from horde.worker.backends.openai_compatible import (
    BackendLocation,
    OpenAICompatibleBackend,
    create_backend_session,
    public_model_name,
)
from horde.worker.tool_reply import ToolViolationError
from tests.support.scripted_model import ScriptedModel, tokens
from tests.support.scripted_pops import chat_job
from tests.support.scripted_talents import Talents
from tests.support.serving import Served

type Model = Served[ScriptedModel]


async def test_a_server_without_llama_cpps_routes_is_taken_for_no_more_than_it_is(model: Model) -> None:
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        backend = await recognise_backend(session, location)
        profile = await backend.probe()
    assert isinstance(backend, OpenAICompatibleBackend)
    assert not isinstance(backend, LlamaCppBackend)
    assert (profile.model_name, profile.window, profile.slots, profile.counts_prompts) == (
        "scripted-1B",
        4096,
        None,
        False,
    )
    assert not profile.facts.honours_seed


@pytest.mark.rule("WRK-7", "CNF-3", "CNF-4")
@pytest.mark.parametrize(("grammar", "proven"), [("enforces", True), ("ignores", False), ("refuses", False)])
async def test_formats_and_tools_are_declared_by_what_the_server_did(
    model: Model,
    grammar: Literal["enforces", "ignores", "refuses"],
    proven: bool,  # noqa: FBT001 - a table
) -> None:
    model.server.talents = Talents(grammar=grammar)
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        facts = (await (await recognise_backend(session, location)).probe()).facts
    assert (facts.constrains_json_schema, facts.renders_tools) == (proven, proven)


@pytest.mark.rule("WRK-4", "TOO-17")
async def test_a_grammar_that_a_server_forgets_later_is_a_tool_violation(model: Model) -> None:
    model.server.talents = Talents(grammar="enforces")
    model.server.play(tokens("It is sunny."))
    tools = [{"type": "function", "function": {"name": "weather"}}]
    job = ChatJobPayload.from_pop(chat_job(tools=tools, tool_choice="required"))
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        backend = await recognise_backend(session, location)
        await backend.probe()
        with pytest.raises(ToolViolationError):
            async with aclosing(backend.generate(job, prompt_limit=4000)) as events:
                _ = [event async for event in events]
    assert "tools" not in model.server.bodies[0]
    assert model.server.bodies[0]["response_format"]["type"] == "json_schema"


@pytest.mark.rule("FMT-11", "WRK-7")
async def test_a_json_object_is_asked_for_as_the_schema_that_was_proven(model: Model) -> None:
    model.server.play(tokens("{}"))
    job = ChatJobPayload.from_pop(chat_job(response_format={"type": "json_object"}))
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        backend = OpenAICompatibleBackend(session, location)
        async with aclosing(backend.generate(job, prompt_limit=4000)) as events:
            _ = [event async for event in events]
    wanted = model.server.bodies[0]["response_format"]
    assert (wanted["type"], wanted["json_schema"]["schema"]) == ("json_schema", {"type": "object"})


async def test_the_servers_key_is_sent_to_it_and_shown_to_nobody(model: Model) -> None:
    location = BackendLocation(base_url=model.url, api_key="backend-secret")
    async with create_backend_session(location) as session:
        await OpenAICompatibleBackend(session, location).probe()
    assert model.server.headers["authorization"] == "Bearer backend-secret"
    assert "backend-secret" not in repr(location)


async def test_a_model_that_is_not_listed_is_refused_with_those_that_are(model: Model) -> None:
    location = BackendLocation(base_url=model.url, model="other")
    async with create_backend_session(location) as session:
        with pytest.raises(BackendError, match="does not list other; it lists scripted-1B"):
            await OpenAICompatibleBackend(session, location).probe()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    location = BackendLocation(base_url="http://127.0.0.1:9/v1")
    async with create_backend_session(location) as session:
        with pytest.raises(BackendUnavailableError, match="cannot be reached"):
            await recognise_backend(session, location)


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("org/Model-7B", "org/Model-7B"),
        ("/home/me/models/Model-7B.gguf", "Model-7B"),
        ("C:\\models\\Model-7B.gguf", "Model-7B"),
        (" Model\n7B\x00 ", "Model7B"),
        ("m" * 300, "m" * 100),
    ],
)
def test_a_models_public_name_tells_nothing_of_the_machine(name: str, public: str) -> None:
    assert public_model_name(name) == public
