"""OpenAI's rule for tool calls: generated histories that keep it, and each way to break it."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from horde.chat_rules.tool_history import find_tool_history_violation
from tests.support.requests import assistant_calls, tool_answer

USER = {"role": "user", "content": "Q"}
TEXT_REPLY = {"role": "assistant", "content": "A"}
NOT_A_RESPONSE = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
)


@st.composite
def valid_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of a user, an assistant with or without calls, and the answers in any order."""
    messages: list[dict[str, Any]] = []
    for turn in range(draw(st.integers(0, 4))):
        messages.extend(draw(st.lists(st.sampled_from([USER, TEXT_REPLY, {"role": "system", "content": "S"}]))))
        ids = [f"call_{turn}_{number}" for number in range(draw(st.integers(0, 4)))]
        if ids:
            messages.append(assistant_calls(*ids))
            messages += [tool_answer(identifier) for identifier in draw(st.permutations(ids))]
    return [*messages, USER]


def violation_of(messages: list[dict[str, Any]]) -> tuple[str, str]:
    violation = find_tool_history_violation(messages)
    assert violation is not None
    assert violation.code == "UnsupportedChatParameter"
    return violation.param, violation.message


def tool_indexes(messages: list[dict[str, Any]]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "tool"]


@pytest.mark.rule("TOO-12", "REQ-52")
@given(valid_histories())
def test_a_history_that_answers_each_call_once_and_at_once_breaks_nothing(messages: list[dict[str, Any]]) -> None:
    assert find_tool_history_violation(messages) is None


@pytest.mark.rule("TOO-13")
@given(valid_histories(), st.data())
def test_without_one_answer_the_next_other_message_is_at_fault(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    assume(answers := tool_indexes(messages))
    missing = data.draw(st.sampled_from(answers))
    identifier = messages[missing]["tool_call_id"]
    broken = messages[:missing] + messages[missing + 1 :]
    arriving = next(index for index in range(missing, len(broken)) if broken[index]["role"] != "tool")
    param, message = violation_of(broken)
    assert param == f"messages[{arriving}].role"
    assert message.endswith(f"did not have response messages: {identifier}")


@pytest.mark.rule("TOO-13")
@given(valid_histories(), st.data())
def test_a_second_answer_to_a_call_is_at_fault_by_its_role(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    assume(answers := tool_indexes(messages))
    repeated = data.draw(st.sampled_from(answers))
    broken = [*messages[: repeated + 1], messages[repeated], *messages[repeated + 1 :]]
    assert violation_of(broken) == (f"messages[{repeated + 1}].role", NOT_A_RESPONSE)


@pytest.mark.rule("TOO-14")
@given(valid_histories(), st.data())
def test_an_id_that_was_not_issued_is_at_fault_by_its_id(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    assume(answers := tool_indexes(messages))
    wrong = data.draw(st.sampled_from(answers))
    broken = [*messages[:wrong], tool_answer("elsewhere"), *messages[wrong + 1 :]]
    param, message = violation_of(broken)
    assert param == f"messages[{wrong}].tool_call_id"
    assert message == "Invalid parameter: 'tool_call_id' of 'elsewhere' not found in 'tool_calls' of previous message."


@pytest.mark.rule("TOO-13")
@pytest.mark.parametrize("before", [[], [USER], [TEXT_REPLY], [assistant_calls("a"), tool_answer("a"), USER]])
def test_an_answer_without_an_open_call_is_at_fault_by_its_role(before: list[dict[str, Any]]) -> None:
    assert violation_of([*before, tool_answer("a")]) == (f"messages[{len(before)}].role", NOT_A_RESPONSE)


@pytest.mark.rule("TOO-13")
def test_an_answer_after_all_calls_were_answered_has_no_open_call() -> None:
    messages = [assistant_calls("a"), tool_answer("a"), tool_answer("b")]
    assert violation_of(messages) == ("messages[2].role", NOT_A_RESPONSE)


@pytest.mark.rule("TOO-13", "TOO-15", "ERR-37")
def test_calls_left_open_at_the_end_are_at_fault_where_they_were_made() -> None:
    param, message = violation_of([USER, assistant_calls("a", "b"), tool_answer("b")])
    assert param == "messages[1].role"
    assert message == (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "The following tool_call_ids did not have response messages: a"
    )


@pytest.mark.rule("TOO-13")
def test_an_assistant_message_does_not_close_the_calls_of_the_one_before() -> None:
    assert violation_of([assistant_calls("a"), assistant_calls("b"), tool_answer("b")])[0] == "messages[1].role"


def test_a_message_about_many_or_long_ids_stays_short() -> None:
    _, message = violation_of([assistant_calls(*(f"{number}" + "x" * 200 for number in range(100))), USER])
    assert len(message) < 1500
    _, message = violation_of([assistant_calls("a"), tool_answer("y" * 10_000)])
    assert len(message) < 300
