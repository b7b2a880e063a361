import dataclasses

import pytest
from horde_sdk.worker.chat_declaration import ChatBackendFacts

from horde.worker.backends.base import BackendProfile
from horde.worker.declaration import DeclarationError, OperatorLimits, build_offer

PROFILE = BackendProfile(
    kind="llama.cpp server",
    model_name="SmolLM2-135M-Instruct",
    window=4096,
    slots=4,
    counts_prompts=True,
    facts=ChatBackendFacts(
        honours_seed=True,
        constrains_json_object=True,
        constrains_json_schema=True,
        faults_on_unbuildable_schema=True,
        refuses_prompt_overflow=True,
    ),
)


def profile(**changes: object) -> BackendProfile:
    return dataclasses.replace(PROFILE, **changes)  # type: ignore[arg-type]  # a test's own values


@pytest.mark.rule("WRK-7")
def test_the_offer_is_what_the_backend_was_found_to_do() -> None:
    offer = build_offer(PROFILE, OperatorLimits())
    assert offer.declaration.to_pop_fields() == {
        "chat_jobs": True,
        "prompt_jobs": False,
        "model_id": "SmolLM2-135M-Instruct",
        "chat_features": [
            "json_object",
            "json_schema",
            "prompt_overflow_refused",
            "seed",
            "structured_output_enforced",
        ],
        "chat_limits": {"max_context_length": 3072, "max_length": 1024},
        "image_transports": [],
    }
    assert offer.threads == 4


@pytest.mark.rule("WRK-7")
def test_the_operator_narrows_and_never_widens() -> None:
    wide = OperatorLimits(threads=64, context_length=100_000, exclude=("seed",))
    offer = build_offer(PROFILE, wide)
    assert (offer.threads, offer.window) == (4, 4096)
    assert "seed" not in offer.declaration.features
    narrow = build_offer(PROFILE, OperatorLimits(threads=1, context_length=2048, max_length=256))
    assert (narrow.threads, narrow.window, narrow.limits.max_length) == (1, 2048, 256)
    assert narrow.limits.max_context_length == 1792


@pytest.mark.rule("WRK-7")
def test_what_the_backend_does_not_do_is_not_declared() -> None:
    assert build_offer(profile(facts=ChatBackendFacts()), OperatorLimits()).declaration.features == frozenset()


def test_the_longest_reply_fits_behind_the_largest_prompt() -> None:
    offer = build_offer(PROFILE, OperatorLimits())
    assert offer.limits.max_context_length + offer.limits.max_length == offer.window
    assert offer.prompt_limit(1024, 9999) == 3072
    assert offer.prompt_limit(16, 100) == 100


def test_without_a_tokenizer_a_context_is_declared_that_bytes_cannot_pass() -> None:
    offer = build_offer(profile(counts_prompts=False), OperatorLimits())
    assert offer.limits.max_context_length == (3072 - 256) // 6


def test_a_server_of_unknown_slots_serves_one_job_at_a_time_or_what_the_operator_says() -> None:
    assert build_offer(profile(slots=None), OperatorLimits()).threads == 1
    assert build_offer(profile(slots=None), OperatorLimits(threads=8)).threads == 8


@pytest.mark.parametrize(
    ("changes", "operator", "hint"),
    [
        ({"window": None}, OperatorLimits(), "HORDE_WORKER_CONTEXT_LENGTH"),
        ({"window": 32}, OperatorLimits(), "larger context"),
        ({}, OperatorLimits(max_length=4096), "HORDE_WORKER_MAX_LENGTH"),
        ({}, OperatorLimits(exclude=("sed",)), "seed"),
    ],
)
def test_what_cannot_be_offered_is_refused_with_what_to_set(
    changes: dict[str, object], operator: OperatorLimits, hint: str
) -> None:
    with pytest.raises(DeclarationError, match=hint):
        build_offer(profile(**changes), operator)
