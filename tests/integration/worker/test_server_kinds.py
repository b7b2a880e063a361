"""Each kind of model server: recognised by what it says, asked in its own words, declared by what it proved."""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from horde_sdk.worker.chat_declaration import ChatBackendFacts, ChatFinishReason, ChatJobPayload, ChatToolStrategy

from horde.worker.backends import recognise_backend
from horde.worker.backends.base import (
    BackendProfile,
    BackendUnavailableError,
    GenerationFinished,
    PromptOverflowError,
    ReasoningDelta,
    TextDelta,
    UnbuildableGrammarError,
)
from horde.worker.backends.koboldcpp import KoboldCppBackend
from horde.worker.backends.llama_cpp import LlamaCppBackend
from horde.worker.backends.ollama import OllamaBackend
from horde.worker.backends.openai_compatible import (
    BackendLocation,
    OpenAICompatibleBackend,
    create_backend_session,
)
from horde.worker.backends.tabbyapi import TabbyApiBackend
from horde.worker.backends.vllm import VllmBackend
from horde.worker.tool_reply import ToolViolationError
from tests.support.scripted_model import Call, Finish, Reason, Say, ScriptedModel, tokens
from tests.support.scripted_pops import chat_job
from tests.support.scripted_talents import Talents
from tests.support.serving import Served

type Model = Served[ScriptedModel]
type Answer = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]

ABLE = Talents(grammar="enforces", thinks="as told", samples=True)
PROPS = {"total_slots": 3, "default_generation_settings": {"n_ctx": 8192}, "modalities": {"vision": False}}
"""What KoboldCpp and TabbyAPI answer too, for the sake of programs that know llama.cpp."""


def count_words(key: str, texts: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a route that counts a token a word."""
    return lambda body: {key: len(texts(body).split())}


def words_of(messages: list[Mapping[str, Any]]) -> str:
    return " ".join(str(message["content"]) for message in messages)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of server, as it shows itself."""

    backend: type[OpenAICompatibleBackend]
    owner: str | None
    answers: dict[str, Answer] = field(default_factory=dict)
    window: int | None = None
    seed: bool = True
    frequency_penalty: bool = True
    slots: int | None = None
    counts: bool = True
    schema_key: str = "response_format"
    path: str = "/v1/chat/completions"


KINDS = {
    "llama.cpp": Kind(
        backend=LlamaCppBackend,
        owner="llamacpp",
        answers={
            "/props": {**PROPS, "build_info": "b1", "chat_template": "{% if thinking %}"},
            "/v1/chat/completions/input_tokens": count_words("input_tokens", lambda body: words_of(body["messages"])),
        },
        slots=3,
    ),
    "KoboldCpp": Kind(
        backend=KoboldCppBackend,
        owner="koboldcpp",
        answers={
            "/props": PROPS,
            "/api/version": {"version": "0.7.0"},
            "/api/tags": {"models": []},
            "/api/extra/version": {"result": "KoboldCpp", "vision": False},
            "/api/extra/true_max_context_length": {"value": 8192},
            "/api/extra/tokencount": count_words("value", lambda body: str(body["prompt"])),
            "/api/extra/json_to_grammar": lambda body: {"success": "nowhere" not in str(body), "result": "root ::= x"},
        },
        frequency_penalty=False,
        slots=1,
    ),
    "Ollama": Kind(
        backend=OllamaBackend,
        owner="library",
        answers={
            "/api/version": {"version": "0.20.1"},
            "/api/tags": {"models": []},
            "/api/show": {"capabilities": ["completion", "thinking"]},
            "/api/ps": {"models": [{"name": "other"}, {"name": "scripted-1B", "context_length": 8192}]},
        },
        counts=False,
        schema_key="format",
    ),
    "vLLM": Kind(
        backend=VllmBackend,
        owner="vllm",
        answers={"/tokenize": count_words("count", lambda body: words_of(body["messages"]))},
        window=8192,
    ),
    "TabbyAPI": Kind(
        backend=TabbyApiBackend,
        owner="tabbyAPI",
        answers={
            "/props": PROPS,
            "/v1/model": {"id": "scripted-1B", "parameters": {"max_seq_len": 8192, "max_batch_size": 4}},
            "/v1/token/encode": count_words("length", lambda body: words_of(body["text"])),
        },
        seed=False,
        slots=4,
        schema_key="json_schema",
    ),
    "another": Kind(backend=OpenAICompatibleBackend, owner=None, window=8192, counts=False),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest, model: Model) -> Kind:
    """Every kind of server, played by the scripted one."""
    shown = request.param
    assert isinstance(shown, Kind)
    show(model, shown)
    return shown


def show(model: Model, kind: Kind) -> None:
    model.server.owner = kind.owner
    model.server.answers = dict(kind.answers)
    model.server.window = kind.window
    model.server.talents = ABLE


async def probe(model: Model) -> tuple[OpenAICompatibleBackend, BackendProfile]:
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        backend = await recognise_backend(session, location)
        assert isinstance(backend, OpenAICompatibleBackend)
        return backend, await backend.probe()


async def serve(model: Model, job: dict[str, Any], *, prompt_limit: int = 4000) -> tuple[str, str, GenerationFinished]:
    """Probe, then generate one reply; return content, reasoning and end."""
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        backend = await recognise_backend(session, location)
        await backend.probe()
        texts, thoughts, end = "", "", None
        async with aclosing(backend.generate(ChatJobPayload.from_pop(job), prompt_limit=prompt_limit)) as events:
            async for event in events:
                match event:
                    case TextDelta(text):
                        texts += text
                    case ReasoningDelta(text):
                        thoughts += text
                    case GenerationFinished():
                        end = event
    assert end is not None
    return texts, thoughts, end


@pytest.mark.rule("WRK-7")
async def test_each_kind_of_server_is_recognised_though_others_copy_its_routes(model: Model, kind: Kind) -> None:
    backend, profile = await probe(model)
    assert type(backend) is kind.backend
    assert profile.kind == kind.backend.traits.kind
    assert (profile.model_name, profile.window, profile.slots) == ("scripted-1B", 8192, kind.slots)


@pytest.mark.rule("WRK-7", "CTX-11", "CNF-5")
async def test_what_is_declared_of_an_able_server_is_what_its_kind_does_and_what_it_showed(
    model: Model, kind: Kind
) -> None:
    _, profile = await probe(model)
    assert profile.facts == ChatBackendFacts(
        honours_seed=kind.seed,
        applies_presence_penalty=True,
        applies_frequency_penalty=kind.frequency_penalty,
        constrains_json_object=True,
        constrains_json_schema=True,
        faults_on_unbuildable_schema=True,
        renders_tools=True,
        tool_strategy=ChatToolStrategy.GRAMMAR,
        serves_tools_with_response_format=True,
        refuses_prompt_overflow=True,
        applies_reasoning_effort=True,
    )
    assert profile.counts_prompts is kind.counts


@pytest.mark.rule("WRK-7")
async def test_a_server_that_shows_nothing_is_declared_by_its_kind_alone(model: Model, kind: Kind) -> None:
    model.server.talents = Talents()
    _, profile = await probe(model)
    known = kind.owner is not None
    assert profile.facts == ChatBackendFacts(
        honours_seed=kind.seed and known,
        applies_presence_penalty=known,
        applies_frequency_penalty=kind.frequency_penalty and known,
        refuses_prompt_overflow=True,
    )


@pytest.mark.rule("WRK-6", "FMT-11")
async def test_a_schema_is_put_where_the_server_looks_for_it(model: Model, kind: Kind) -> None:
    model.server.play(tokens("{}"))
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    await serve(model, chat_job(response_format=asked))
    [body] = model.server.bodies
    wanted = asked if kind.schema_key == "response_format" else schema
    assert body[kind.schema_key] == wanted
    assert {"response_format", "json_schema", "format"} & body.keys() == {kind.schema_key}


@pytest.mark.rule("WRK-6")
@pytest.mark.usefixtures("kind")
async def test_every_sampling_value_is_told_in_the_servers_words(model: Model) -> None:
    model.server.play(tokens("Yes"))
    samplings: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 30,
        "min_p": 0.05,
        "rep_pen": 1.1,
        "seed": 11,
    }
    samplings |= {"presence_penalty": 0.2, "frequency_penalty": 0.3, "stop_sequence": ["END"]}
    await serve(model, chat_job(max_length=48, **samplings))
    [body] = model.server.bodies
    told = body.get("options", body)
    assert {key: told[key] for key in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")} == {
        **{key: samplings[key] for key in ("temperature", "top_p", "top_k", "min_p", "seed")},
        "stop": ["END"],
    }
    assert (told["presence_penalty"], told["frequency_penalty"]) == (0.2, 0.3)
    assert told.get("repeat_penalty", told.get("repetition_penalty")) == 1.1
    assert told.get("max_tokens", told.get("num_predict")) == 48


@pytest.mark.rule("CTX-11", "WRK-4")
async def test_a_prompt_that_does_not_fit_is_refused_before_the_server_could_cut_it(model: Model, kind: Kind) -> None:
    model.server.play(tokens("Yes"))
    with pytest.raises(PromptOverflowError, match="takes" if kind.counts else "may take"):
        await serve(model, chat_job("sea " * 4100))
    assert model.server.bodies == []


@pytest.mark.rule("CTX-11")
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.counts])
async def test_a_prompt_that_fits_by_the_servers_count_is_served_though_its_bytes_are_more(
    model: Model, name: str
) -> None:
    show(model, KINDS[name])
    model.server.play(tokens("Yes"))
    text, _, _ = await serve(model, chat_job("sea " * 3000))
    assert text == "Yes"


@pytest.mark.rule("WRK-3", "RSN-1")
@pytest.mark.usefixtures("kind")
async def test_what_a_server_marks_as_reasoning_is_no_content(model: Model) -> None:
    model.server.play([Reason("Hm. "), Reason("Yes?"), Say("Yes"), Finish("length", 7, 9)])
    text, reasoning, end = await serve(model, chat_job(max_length=64))
    assert (text, reasoning) == ("Yes", "Hm. Yes?")
    assert (end.finish_reason, end.usage.prompt_tokens, end.usage.completion_tokens) == (
        ChatFinishReason.LENGTH,
        7,
        9,
    )


@pytest.mark.rule("WRK-4")
async def test_koboldcpp_is_asked_for_the_grammar_that_it_would_miss_without_a_word(model: Model) -> None:
    show(model, KINDS["KoboldCpp"])
    model.server.play(tokens("{}"))
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"$ref": "#/nowhere"}}}
    with pytest.raises(UnbuildableGrammarError):
        await serve(model, chat_job(response_format=asked))
    assert model.server.bodies == []


@pytest.mark.rule("CTX-11", "WRK-6")
async def test_ollama_is_told_not_to_cut_a_prompt(model: Model) -> None:
    show(model, KINDS["Ollama"])
    model.server.play(tokens("Yes"))
    await serve(model, chat_job())
    [body] = model.server.bodies
    assert (body["truncate"], body["shift"]) == (False, False)


@pytest.mark.rule("WRK-7", "TOO-17")
@pytest.mark.parametrize("name", ["Ollama", "vLLM", "another"])
async def test_tools_of_the_servers_own_are_used_where_no_schema_holds(model: Model, name: str) -> None:
    show(model, KINDS[name])
    model.server.talents = Talents(parses_calls=True)
    model.server.play([Call("weather", '{"city":"Paris"}'), Finish("stop")])
    _, profile = await probe(model)
    assert profile.facts.tool_strategy is ChatToolStrategy.TEMPLATE
    assert not profile.facts.serves_tools_with_response_format
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    text, _, end = await serve(model, chat_job(tools=[tool], tool_choice="auto"))
    [call] = end.tool_calls
    assert (text, call.name, call.arguments) == ("", "weather", '{"city":"Paris"}')
    assert end.finish_reason is ChatFinishReason.TOOL_CALLS
    assert model.server.bodies[0]["tools"] == [tool]


@pytest.mark.rule("WRK-4", "TOO-17")
@pytest.mark.parametrize("call", [Call("clock", "{}"), Call("weather", "soon"), Call("weather", "[]")])
async def test_a_call_that_the_job_does_not_offer_is_a_tool_violation(model: Model, call: Call) -> None:
    show(model, KINDS["vLLM"])
    model.server.talents = Talents(parses_calls=True)
    model.server.play([call, Finish("tool_calls")])
    tool = {"type": "function", "function": {"name": "weather"}}
    with pytest.raises(ToolViolationError):
        await serve(model, chat_job(tools=[tool]))


@pytest.mark.rule("WRK-7")
async def test_seed_and_penalties_of_an_unknown_server_are_declared_when_they_were_seen(model: Model) -> None:
    show(model, KINDS["another"])
    model.server.talents = Talents(samples=True)
    facts = (await probe(model))[1].facts
    assert (facts.honours_seed, facts.applies_presence_penalty, facts.applies_frequency_penalty) == (True,) * 3


async def test_what_was_found_is_told_to_the_operator_with_its_reason(model: Model, kind: Kind) -> None:
    _, profile = await probe(model)
    told = "\n".join(profile.findings)
    assert "tools: a forced call came as the grammar had it when tried" in told
    assert "a schema was enforced when tried" in told
    if not kind.seed:
        assert "seed: this kind of server does not apply it" in told


@pytest.mark.rule("CTX-11", "WRK-4")
@pytest.mark.parametrize("name", ["llama.cpp", "KoboldCpp", "vLLM", "TabbyAPI"])
async def test_a_server_whose_tokenizer_does_not_answer_is_judged_by_bytes(model: Model, name: str) -> None:
    kind = KINDS[name]
    show(model, kind)
    routes = ("input_tokens", "tokencount", "tokenize", "encode")
    model.server.answers = {path: answer for path, answer in kind.answers.items() if not path.endswith(routes)}
    model.server.play(tokens("Yes"))
    assert not (await probe(model))[1].counts_prompts
    with pytest.raises(PromptOverflowError, match="may take"):
        await serve(model, chat_job("sea " * 1100))


async def test_a_job_that_runs_while_the_server_is_looked_at_again_goes_by_what_was_known(model: Model) -> None:
    show(model, KINDS["another"])
    model.server.play(tokens("Yes"))
    job = ChatJobPayload.from_pop(chat_job(reasoning_effort="low"))
    location = BackendLocation(base_url=model.url)
    async with create_backend_session(location) as session:
        backend = await recognise_backend(session, location)
        await backend.probe()
        model.server.available = False
        with pytest.raises(BackendUnavailableError):
            await backend.probe()
        model.server.available = True
        async with aclosing(backend.generate(job, prompt_limit=4000)) as events:
            _ = [event async for event in events]
    assert model.server.bodies[-1]["reasoning_effort"] == "low"


@pytest.mark.rule("WRK-7", "CNF-4")
async def test_a_model_that_cannot_but_think_is_given_room_to_when_it_is_asked_for_a_schema(model: Model) -> None:
    show(model, KINDS["vLLM"])
    model.server.talents = Talents(grammar="enforces", thinks="always")
    facts = (await probe(model))[1].facts
    assert facts.constrains_json_schema
    assert {body["max_tokens"] for body in model.server.probed if "response_format" in body} == {512}
