import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.chat_contract import estimate_prompt_tokens, estimate_text_tokens, iter_message_texts
from tests.support.requests import assistant_calls, function_tool

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}), max_size=5)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 2), ("猫", 3), ("🙂", 4), ("ab猫", 4)],
)
def test_a_token_per_wide_byte_and_one_per_four_ascii_bytes(text: str, tokens: int) -> None:
    assert estimate_text_tokens(text) == tokens


@given(TEXT)
def test_the_estimate_is_the_documented_formula(text: str) -> None:
    narrow = sum(character.isascii() for character in text)
    assert estimate_text_tokens(text) == len(text.encode()) - narrow + math.ceil(narrow / 4)


@given(TEXT, TEXT)
def test_more_text_never_takes_fewer_tokens(text: str, more: str) -> None:
    whole = estimate_text_tokens(text + more)
    assert max(estimate_text_tokens(text), estimate_text_tokens(more)) <= whole
    assert whole <= estimate_text_tokens(text) + estimate_text_tokens(more)


@given(MESSAGES, MESSAGES)
def test_a_conversation_takes_what_its_halves_take(first: list[Any], second: list[Any]) -> None:
    halves = estimate_prompt_tokens(first) + estimate_prompt_tokens(second)
    assert estimate_prompt_tokens(first + second) == halves


def test_each_message_takes_four_tokens_beside_its_text() -> None:
    assert estimate_prompt_tokens([{"role": "user", "content": "abcd"}, {"role": "assistant", "content": ""}]) == 9


def test_a_picture_takes_1024_tokens_whatever_its_address() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9999}}
    content = [picture, {"type": "text", "text": "abcd"}, picture]
    assert estimate_prompt_tokens([{"role": "user", "content": content}]) == 4 + 1 + 2 * 1024


def test_names_and_arguments_of_calls_are_text_of_the_prompt() -> None:
    message = assistant_calls("a", name="look", arguments='{"q":1}')
    assert list(iter_message_texts(message)) == ["look", '{"q":1}']
    assert estimate_prompt_tokens([message]) == 4 + 1 + 2


def test_the_tool_spec_counts_as_its_compact_json() -> None:
    tools = [function_tool("f")]
    spec = '{"tools":[{"type":"function","function":{"name":"f"}}]}'
    assert estimate_prompt_tokens([], tools=tools) == estimate_text_tokens(spec)
    assert estimate_prompt_tokens([], tools=tools, tool_choice="auto") > estimate_prompt_tokens([], tools=tools)
    assert estimate_prompt_tokens([], response_format={"type": "json_object"}) > 0


def test_empty_tools_add_nothing() -> None:
    assert estimate_prompt_tokens([], tools=[], tool_choice=None, response_format=None) == 0
