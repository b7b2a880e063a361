import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.chat_contract import estimate_prompt_tokens
from horde.worker.prompt_bound import declarable_context, prompt_token_bound

CONTENTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.text(max_size=50).map(lambda text: {"type": "text", "text": text}), max_size=4),
)
MESSAGES = st.lists(CONTENTS.map(lambda content: {"role": "user", "content": content}), min_size=1, max_size=8)


@pytest.mark.rule("WRK-7", "CNF-5")
@given(MESSAGES, st.integers(256, 100_000))
def test_no_prompt_that_the_horde_routes_by_its_estimate_passes_the_bound(
    messages: list[dict[str, object]], room: int
) -> None:
    if estimate_prompt_tokens(messages) <= declarable_context(room):
        assert prompt_token_bound(messages) <= room


@given(st.text(max_size=200))
def test_every_byte_of_the_text_counts(text: str) -> None:
    assert prompt_token_bound([{"role": "user", "content": text}]) >= len(text.encode())


def test_tool_turns_count_with_names_and_arguments() -> None:
    call = {"id": "c" * 10, "type": "function", "function": {"name": "n" * 20, "arguments": "a" * 300}}
    bare = prompt_token_bound([{"role": "assistant", "content": ""}])
    assert prompt_token_bound([{"role": "assistant", "content": "", "tool_calls": [call]}]) == bare + 330


def test_a_message_nested_without_end_is_measured_without_recursion() -> None:
    nested: list[object] = ["deep"]
    for _ in range(100_000):
        nested = [nested]
    assert prompt_token_bound([{"role": "user", "content": nested}]) > 0
