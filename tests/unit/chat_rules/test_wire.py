"""Sentences that one side writes and the other reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.chat_contract import (
    KUDOS_CAP_EXCESS_PATTERN,
    NATIVE_REQUEST_PATH_PATTERN,
    kudos_cap_excess_message,
    unknown_model_message,
)


@pytest.mark.rule("KUD-5")
@given(st.floats(0, 1e9), st.integers(1, 2**31 - 1))
def test_both_numbers_of_a_kudos_cap_are_read_back_from_the_message(estimate: float, cap: int) -> None:
    found = KUDOS_CAP_EXCESS_PATTERN.match(kudos_cap_excess_message(estimate, cap))
    assert found is not None
    assert float(found["estimate"]) == pytest.approx(estimate, abs=0.005)
    assert int(found["cap"]) == cap


@pytest.mark.rule("REQ-32")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.integers(0, 4))
def test_the_entry_of_an_unknown_model_is_read_back_whatever_its_name(model: str, index: int) -> None:
    found = NATIVE_REQUEST_PATH_PATTERN.match(unknown_model_message(model, f"models[{index}]"))
    assert found is not None
    assert found["path"] == f"models[{index}]"


@pytest.mark.rule("REQ-32")
@pytest.mark.parametrize(
    "path", ["models", "models[4]", "messages[0].content[12].image_url", "tools[3].function.parameters"]
)
def test_a_path_of_several_steps_is_read(path: str) -> None:
    found = NATIVE_REQUEST_PATH_PATTERN.match(f"'{path}' is not to be had.")
    assert found is not None
    assert found["path"] == path


@pytest.mark.parametrize(
    "message",
    ["models[0] is", "The 'models[0]' is", "'' is", "'Models' is", "'models[x]' is", "'models[0]'is", "'.a' is"],
)
def test_a_message_that_opens_otherwise_names_no_path(message: str) -> None:
    assert NATIVE_REQUEST_PATH_PATTERN.match(message) is None
