"""Model cards and the model list (rules MDL)."""

import asyncio
from typing import Any

import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatGuarantee

from horde.oai import model_list
from horde.oai.app import open_front
from horde.oai.mapping import build_model_card
from horde.oai.responses import ModelCard
from horde.oai.settings import FrontSettings
from tests.support.front import FAST, Front, running_front
from tests.support.scripted_horde import MODEL, Answer, chat_model, scripted_horde
from tests.support.waiting import wait_until


def card(**chat: Any) -> dict[str, Any]:
    built = build_model_card(chat_model(**chat))
    assert built is not None
    return built


async def listed(front: Front) -> list[dict[str, Any]]:
    exchange = front.client.request("GET", "/v1/models")
    assert await exchange.status() == 200
    body = await exchange.json()
    assert body["object"] == "list"
    return list(body["data"])


# A card


@pytest.mark.rule("MDL-2", "MDL-3", "MDL-4", "MDL-13")
def test_a_card_has_every_documented_field() -> None:
    built = card(features=[])
    ModelCard.model_validate(built)
    assert built == {
        "id": MODEL,
        "object": "model",
        "created": 0,
        "owned_by": "ai-horde",
        "name": MODEL,
        "context_length": 8192,
        "architecture": {"modality": "text->text", "input_modalities": ["text"], "output_modalities": ["text"]},
        "top_provider": {"context_length": 8192, "max_completion_tokens": 1024, "is_moderated": False},
        "supported_parameters": ["max_tokens", "temperature", "top_p", "stop"],
        "x_horde": {"workers": 3, "threads": 6, "queued_tokens": 640, "queued_requests": 2, "eta_seconds": 7},
    }


@pytest.mark.rule("MDL-5")
def test_vision_adds_images_to_the_inputs() -> None:
    assert card(features=["vision"])["architecture"]["input_modalities"] == ["text", "image"]


@pytest.mark.rule("MDL-6", "MDL-7", "MDL-8", "MDL-9", "MDL-10", "MDL-11", "MDL-12")
@pytest.mark.parametrize(
    ("features", "added"),
    [
        (["seed"], ["seed"]),
        (["frequency_penalty", "presence_penalty"], ["frequency_penalty", "presence_penalty"]),
        (["tools"], ["tools"]),
        (["tools", "tool_choice_enforced"], ["tools", "tool_choice"]),
        (["tools", "single_tool_call_enforced"], ["tools", "parallel_tool_calls"]),
        (["tool_choice_enforced", "single_tool_call_enforced"], []),
        (["json_object"], ["response_format"]),
        (["json_schema"], ["response_format"]),
        (["reasoning_effort"], ["reasoning_effort"]),
        (["prompt_overflow_refused", "something_newer"], []),
    ],
)
def test_a_declaration_adds_its_parameter(features: list[str], added: list[str]) -> None:
    assert card(features=features)["supported_parameters"][4:] == added


@pytest.mark.rule("MDL-14")
def test_every_declaration_together_adds_every_parameter_once() -> None:
    everything = [*(feature.value for feature in ChatFeature), *(guarantee.value for guarantee in ChatGuarantee)]
    parameters = card(features=everything)["supported_parameters"]
    assert len(parameters) == len(set(parameters)) == 12


@pytest.mark.rule("MDL-1")
@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "chat": None},
        {"name": "a"},
        chat_model(workers=0),
        chat_model(name="a:free"),
        {"name": 5, "chat": {"workers": 1}},
        {"name": "a", "chat": {"workers": "many"}},
    ],
)
def test_what_no_chat_worker_serves_has_no_card(entry: dict[str, Any]) -> None:
    assert build_model_card(entry) is None


# The list


@pytest.mark.rule("MDL-1", "MDL-15", "MDL-16")
async def test_the_list_holds_the_models_that_chat_workers_serve() -> None:
    async with running_front() as front:
        front.horde.models = [
            Answer(body=[chat_model("b/two"), {"name": "no chat", "chat": None}, chat_model("a/one")])
        ]
        assert [model["id"] for model in await listed(front)] == ["b/two", "a/one"]


@pytest.mark.rule("MDL-2", "REQ-34")
async def test_one_model_is_shown_by_an_id_with_slashes_and_an_unknown_one_is_a_404() -> None:
    async with running_front() as front:
        for path in ("/v1/models/test/model-a", "/v1/models/test%2Fmodel-a"):
            assert (await front.client.request("GET", path).json())["id"] == MODEL
        exchange = front.client.request("GET", "/v1/models/other")
        assert await exchange.status() == 404
        assert (await exchange.json())["error"]["code"] == "model_not_found"


@pytest.mark.rule("MDL-15", "AUT-3")
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/test/model-a"])
async def test_a_malformed_authorization_is_a_401(path: str) -> None:
    async with running_front() as front:
        exchange = front.client.request("GET", path, headers={"Authorization": "Basic eDp5"})
        assert await exchange.status() == 401
        assert (await exchange.json())["error"]["code"] == "InvalidAuthorizationHeader"


async def test_a_thousand_clients_at_once_cause_one_native_call() -> None:
    async with running_front() as front:
        release = asyncio.Event()
        front.horde.models = [Answer(body=[chat_model()], held=release)]
        exchanges = [front.client.request("GET", "/v1/models") for _ in range(1000)]
        await wait_until(lambda: front.horde.of("GET", "/status/models"), description="the native call")
        release.set()
        assert {await exchange.status() for exchange in exchanges} == {200}
        assert len(front.horde.of("GET", "/status/models")) == 1


async def test_a_fresh_list_is_served_without_asking_again() -> None:
    async with running_front(model_cache_seconds=60) as front:
        await listed(front)
        await listed(front)
        assert len(front.horde.of("GET", "/status/models")) == 1


@pytest.mark.parametrize("failure", [Answer(500, {"message": "no"}), Answer(drop=True), Answer(200, b"<html>")])
async def test_a_failing_horde_leaves_the_last_good_list_for_a_bounded_time(failure: Answer) -> None:
    async with running_front(model_cache_seconds=0, model_stale_seconds=60) as front:
        front.horde.models = [Answer(body=[chat_model()]), failure]
        assert await listed(front) == await listed(front)
    async with running_front(model_cache_seconds=0, model_stale_seconds=0) as front:
        front.horde.models = [Answer(body=[chat_model()]), failure]
        exchange = front.client.request("GET", "/v1/models")
        assert await exchange.status() in {200, 502}
        exchange = front.client.request("GET", "/v1/models")
        assert await exchange.status() == 502
        assert (await exchange.json())["error"]["code"] == "HordeUnavailable"


async def test_a_horde_that_hangs_does_not_hold_up_a_list_that_may_still_be_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_list, "_REFRESH_WAIT_SECONDS", 0.05)
    async with running_front(model_cache_seconds=0, model_stale_seconds=60, call_timeout_seconds=60) as front:
        release = asyncio.Event()
        front.horde.models = [Answer(body=[chat_model()]), Answer(body=[chat_model("new")], held=release)]
        assert [model["id"] for model in await listed(front)] == [MODEL]
        for _ in range(3):
            assert [model["id"] for model in await listed(front)] == [MODEL]
        assert len(front.horde.of("GET", "/status/models")) == 2
        release.set()

        async def is_new() -> bool:
            return [model["id"] for model in await listed(front)] == ["new"]

        await wait_until(is_new, description="the answer of the Horde that hung")


async def test_a_slow_answer_within_the_wait_is_the_one_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_list, "_REFRESH_WAIT_SECONDS", 60.0)
    async with running_front(model_cache_seconds=0, model_stale_seconds=60) as front:
        release = asyncio.Event()
        front.horde.models = [Answer(body=[chat_model()]), Answer(body=[chat_model("new")], held=release)]
        await listed(front)
        exchange = front.client.request("GET", "/v1/models")
        await wait_until(lambda: len(front.horde.of("GET", "/status/models")) == 2, description="the second call")
        release.set()
        assert [model["id"] for model in (await exchange.json())["data"]] == ["new"]


async def test_a_refresh_under_way_ends_with_the_front() -> None:
    async with scripted_horde() as horde:
        release = asyncio.Event()
        horde.models = [Answer(body=[chat_model()], held=release)]
        settings = FrontSettings(horde_urls=(horde.url,), **FAST, model_cache_seconds=0)
        stopping = asyncio.Event()
        async with open_front(settings, stopping=stopping, on_failure=stopping.set) as state:
            refresh = asyncio.create_task(state.catalog.refresh())
            await wait_until(lambda: horde.calls, description="the native call")
        # At once: nothing of it is left to run while the connections are closed under it.
        assert "front - model list" not in {task.get_name() for task in asyncio.all_tasks() if not task.done()}
        release.set()
        await refresh
