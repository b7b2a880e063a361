from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.native.context import (
    ContextFit,
    ContextFitError,
    Fitted,
    default_context_length,
    fit_context,
    lower_length,
)


def _fit(roles: str, sizes: list[int], context: int, largest: int | None, mode: str, fixed: int = 0) -> Fitted:
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    return fit_context(
        [{"role": names[letter]} for letter in roles],
        sizes,
        fixed_tokens=fixed,
        context_length=context,
        largest_declared=largest,
        mode=ContextFit(mode),
    )


@pytest.mark.parametrize("mode", ["truncate_oldest", "grow", "reject"])
@pytest.mark.rule("CTX-5")
def test_messages_that_fit_are_left_as_they_are(mode: str) -> None:
    assert _fit("suau", [10, 10, 10, 10], 40, 100, mode) == Fitted((0, 1, 2, 3), 40)


@pytest.mark.rule("CTX-4")
def test_reject_refuses_messages_that_do_not_fit() -> None:
    with pytest.raises(ContextFitError) as refused:
        _fit("u", [41], 40, 100, "reject")
    assert (refused.value.needed, refused.value.available) == (41, 40)


@pytest.mark.rule("CTX-3")
def test_grow_enlarges_the_context_to_what_an_online_worker_declares_and_no_further() -> None:
    assert _fit("u", [50], 40, 100, "grow") == Fitted((0,), 80, ({"from": 40, "to": 80, "reason": "grow"},))
    assert _fit("u", [90], 40, 100, "grow") == Fitted((0,), 100, ({"from": 40, "to": 100, "reason": "grow"},))
    with pytest.raises(ContextFitError):
        _fit("uau", [50, 50, 50], 40, 100, "grow")


@pytest.mark.rule("CTX-1", "CTX-6")
def test_truncate_oldest_grows_first_and_then_drops_whole_turns_from_the_oldest() -> None:
    fitted = _fit("suauau", [10, 30, 30, 30, 30, 30], 40, 100, "truncate_oldest")

    assert fitted.kept == (0, 3, 4, 5)
    assert fitted.context_length == 100
    assert fitted.adjustments == (
        {"from": 40, "to": 100, "reason": "grow"},
        {"reason": "truncate_oldest", "dropped_messages": 2},
    )


@pytest.mark.rule("CTX-2")
def test_instructions_and_the_last_user_message_with_what_follows_are_never_dropped() -> None:
    fitted = _fit("duausat", [20, 30, 30, 30, 20, 20, 5], 110, 110, "truncate_oldest")
    assert fitted.kept == (0, 3, 4, 5, 6)

    with pytest.raises(ContextFitError):
        _fit("suat", [50, 50, 50, 50], 110, 110, "truncate_oldest")


def test_a_tool_call_and_its_answers_are_dropped_together() -> None:
    fitted = _fit("uattu", [10, 10, 10, 10, 10], 15, 15, "truncate_oldest")
    assert fitted.kept == (4,)


def test_assistant_messages_before_the_first_user_message_are_a_turn_of_their_own() -> None:
    fitted = _fit("aauau", [10, 10, 10, 10, 10], 30, 30, "truncate_oldest")
    assert fitted.kept == (2, 3, 4)


def test_what_is_beside_the_messages_takes_its_room() -> None:
    with pytest.raises(ContextFitError):
        _fit("u", [30], 40, None, "grow", fixed=11)


@given(
    st.lists(st.tuples(st.sampled_from("suat"), st.integers(1, 200)), min_size=1, max_size=30),
    st.integers(1, 600),
    st.none() | st.integers(1, 1200),
    st.integers(0, 100),
)
def test_what_truncate_oldest_leaves_always_fits_and_always_holds_what_must_stay(
    messages: list[tuple[str, int]], context: int, largest: int | None, fixed: int
) -> None:
    roles = "".join(role for role, _ in messages)
    sizes = [size for _, size in messages]
    last_user = roles.rfind("u") if "u" in roles else 0
    must_stay = {i for i, role in enumerate(roles) if role == "s" or i >= last_user}
    bound = max(context, largest or 0)
    try:
        fitted = _fit(roles, sizes, context, largest, "truncate_oldest", fixed)
    except ContextFitError:
        assert fixed + sum(sizes[i] for i in must_stay) > bound
        return
    assert fixed + sum(sizes[i] for i in fitted.kept) <= fitted.context_length <= bound
    assert must_stay <= set(fitted.kept)
    assert list(fitted.kept) == sorted(fitted.kept)
    for i in fitted.kept:
        # No call without its answers, no answer without its call: a tool message's turn is whole or gone.
        if roles[i] == "t" and i > 0 and roles[i - 1] != "s":
            assert i - 1 in fitted.kept


@pytest.mark.parametrize(("largest", "length"), [(None, 4096), (8192, 4096), (2048, 2048)])
def test_the_default_context_is_4096_or_the_largest_declared(largest: int | None, length: int) -> None:
    assert default_context_length(largest) == length


@pytest.mark.rule("CTX-7", "CTX-8")
def test_a_length_above_every_declared_one_is_lowered_and_reported() -> None:
    expected: Mapping[str, Any] = {"from": 2048, "to": 1024, "reason": "worker_max_length"}
    assert lower_length(2048, 1024) == (1024, expected)
    assert lower_length(1024, 1024) == (1024, None)
    assert lower_length(2048, None) == (2048, None)
