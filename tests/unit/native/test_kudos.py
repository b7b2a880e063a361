from decimal import Decimal

import pytest
from horde_sdk.generation_parameters.text.chat_limits import MAX_CHAT_MAX_TOKENS
from hypothesis import given
from hypothesis import strategies as st

from horde.native.kudos import (
    MAX_FREE_TOKENS,
    MIN_FREE_TOKENS,
    free_output_allowance,
    model_multiplier,
    parameters_in_name,
    price_cents,
    to_kudos,
)
from horde.native.ledger import MAX_BALANCE_CENTS, exact_cents


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("koboldcpp/Llama-3-8B-Instruct", 8.0),
        ("Qwen3-0.6B", 0.6),
        ("SmolLM2-135M-Instruct", 0.135),
        ("mixtral-8x7b", 56.0),
        ("org/model-70b.Q4_K_M", 70.0),
        ("gpt-4", None),
        ("llama3b2", None),
        ("", None),
    ],
)
def test_parameters_are_read_from_a_models_name(name: str, billions: float | None) -> None:
    assert parameters_in_name(name) == billions


def test_declared_parameters_stand_over_the_name_and_are_at_least_one() -> None:
    assert model_multiplier("model-8B", 13.0) == 13.0
    assert model_multiplier("model-8B") == 8.0
    assert model_multiplier("SmolLM2-135M") == 1.0
    assert model_multiplier("nothing to read") == 1.0


@given(
    tokens=st.integers(0, MAX_CHAT_MAX_TOKENS),
    billions=st.floats() | st.none(),
    name=st.text() | st.from_regex(r"[0-9]{1,3}x[0-9]{1,5}[bB]", fullmatch=True),
    images=st.integers(0, 2**15 - 1),
)
def test_no_price_is_more_than_a_millionth_of_a_balance(
    tokens: int, billions: float | None, name: str, images: int
) -> None:
    price = price_cents(tokens, model_multiplier(name, billions), images)
    assert 0 <= price <= MAX_BALANCE_CENTS // 10**6


@given(cents=st.integers(-MAX_BALANCE_CENTS, MAX_BALANCE_CENTS).filter(bool))
def test_an_amount_is_read_and_told_exactly(cents: int) -> None:
    assert exact_cents(Decimal(cents).scaleb(-2)) == cents
    assert round(to_kudos(cents) * 100) == cents


@pytest.mark.rule("KUD-13")
def test_a_reply_costs_its_tokens_by_the_multiplier_and_five_kudos_an_image() -> None:
    assert price_cents(512, 1.0) == 2438
    assert price_cents(21, 8.0) == 800
    assert price_cents(0, 8.0) == 0
    assert price_cents(21, 1.0, images=2) == 100 + 1000
    assert to_kudos(2438) == 24.38


@given(st.integers(0, 16384), st.integers(0, 16384), st.floats(1, 1000), st.integers(0, 16))
def test_a_longer_reply_never_costs_less(shorter: int, more: int, multiplier: float, images: int) -> None:
    assert price_cents(shorter, multiplier, images) <= price_cents(shorter + more, multiplier, images)


@pytest.mark.rule("KUD-11")
def test_the_free_allowance_is_4096_on_an_idle_pool_and_512_on_a_full_one() -> None:
    assert free_output_allowance(0, 4) == 4096
    assert free_output_allowance(4, 4) == 2048
    assert free_output_allowance(1000, 4) == 512
    assert free_output_allowance(0, 0) == 4096


@given(st.integers(0, 10_000), st.integers(0, 1000), st.integers(0, 1000))
def test_more_jobs_never_raise_the_free_allowance(jobs: int, more: int, threads: int) -> None:
    busy = free_output_allowance(jobs + more, threads)
    assert MIN_FREE_TOKENS <= busy <= free_output_allowance(jobs, threads) <= MAX_FREE_TOKENS
