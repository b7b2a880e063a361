from typing import Any

import pytest

from horde.worker.backends.efforts import (
    KOBOLDCPP_EFFORTS,
    LLAMA_CPP_EFFORTS,
    OLLAMA_EFFORTS,
    OPENAI_EFFORTS,
    TABBYAPI_EFFORTS,
    VLLM_EFFORTS,
    EffortMapping,
    thinking_budget,
)

EVERY_MAPPING = [
    mapping
    for mappings in (
        KOBOLDCPP_EFFORTS,
        LLAMA_CPP_EFFORTS,
        OLLAMA_EFFORTS,
        OPENAI_EFFORTS,
        TABBYAPI_EFFORTS,
        VLLM_EFFORTS,
    )
    for mapping in mappings
]


@pytest.mark.rule("RSN-10", "RSN-12", "RSN-13")
@pytest.mark.parametrize(
    ("effort", "budget"),
    [("none", 0), ("minimal", 100), ("low", 250), ("medium", 500), ("high", None), ("xhigh", None), ("later", None)],
)
def test_an_effort_is_a_share_of_the_reply_in_which_both_have_to_fit(effort: str, budget: int | None) -> None:
    assert thinking_budget(effort, 1000) == budget


@pytest.mark.rule("RSN-10")
@pytest.mark.parametrize(
    ("mapping", "keys"),
    [
        (LLAMA_CPP_EFFORTS[0], {"thinking_budget_tokens": 256}),
        (VLLM_EFFORTS[0], {"thinking_token_budget": 256}),
        (TABBYAPI_EFFORTS[0], {"reasoning_budget_tokens": 256}),
        (KOBOLDCPP_EFFORTS[0], {"reasoning_effort": "medium"}),
    ],
)
def test_medium_closes_the_thinking_at_half_of_the_reply(mapping: EffortMapping, keys: dict[str, Any]) -> None:
    assert mapping.closes_thinking
    assert mapping.keys("medium", 512).items() >= keys.items()


@pytest.mark.rule("RSN-12")
@pytest.mark.parametrize("mapping", EVERY_MAPPING, ids=lambda mapping: mapping.name)
def test_none_turns_thinking_off_in_every_servers_words(mapping: EffortMapping) -> None:
    keys = mapping.keys("none", 512)
    told = [keys.get("think"), keys.get("chat_template_kwargs", {}).get("enable_thinking")]
    assert keys.get("reasoning_effort") == "none" or False in told
    assert True not in told
    assert not any("budget" in key for key in keys)


@pytest.mark.rule("RSN-12")
@pytest.mark.parametrize("mapping", EVERY_MAPPING, ids=lambda mapping: mapping.name)
def test_high_has_no_cap_but_the_replys_own(mapping: EffortMapping) -> None:
    assert not any("budget" in key for key in mapping.keys("high", 512))


@pytest.mark.rule("RSN-12")
@pytest.mark.parametrize(
    ("effort", "level"), [("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "high")]
)
def test_ollama_is_told_one_of_its_levels(effort: str, level: str) -> None:
    assert OLLAMA_EFFORTS[0].keys(effort, 512) == {"think": level}
