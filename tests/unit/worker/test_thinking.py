import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.worker.thinking import ThinkPiece, ThinkSplitter

FRAGMENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "<", ">", " ", "\n", "a", "the sea", "é"]),
    max_size=12,
).map("".join)


def split(pieces: list[str], *, starts_inside: bool = False) -> ThinkPiece:
    splitter = ThinkSplitter(starts_inside=starts_inside)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return ThinkPiece("".join(part.reasoning for part in parts), "".join(part.content for part in parts))


@pytest.mark.rule("WRK-3", "RSN-1")
@given(
    st.lists(st.sampled_from(["<think>", " let me", "\nsee ", "</think>", "\n\nYes", "."])), st.booleans(), st.data()
)
def test_where_a_reply_is_cut_makes_no_difference(words: list[str], starts_inside: bool, data: st.DataObject) -> None:  # noqa: FBT001 - drawn by hypothesis
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, starts_inside=starts_inside) == split([text], starts_inside=starts_inside)


@given(FRAGMENTS)
def test_one_character_at_a_time_gives_the_same_as_the_whole(text: str) -> None:
    assert split(list(text)) == split([text])


@given(FRAGMENTS)
def test_a_reply_without_a_block_at_its_start_passes_unchanged(text: str) -> None:
    if text.lstrip().startswith("<think>"):
        text = "x" + text
    assert split([text]) == ThinkPiece(content=text)


@pytest.mark.rule("RSN-1")
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nYes", "hm", "Yes"),
        ("  <think>hm</think>Yes ", "hm", "Yes "),
        ("<think></think>Yes", "", "Yes"),
        ("<think>\n\n</think>\n\nYes", "", "Yes"),
        ("<think>a </ b</think>Yes", "a </ b", "Yes"),
        ("Use the <think> tag", "", "Use the <think> tag"),
        ("<thinking>", "", "<thinking>"),
        ("<thi", "", "<thi"),
        ("   ", "", "   "),
        ("", "", ""),
    ],
)
def test_a_block_at_the_start_is_reasoning_and_nothing_else_is(text: str, reasoning: str, content: str) -> None:
    assert split([text]) == ThinkPiece(reasoning, content)


@pytest.mark.rule("WRK-3", "RSN-14")
@pytest.mark.parametrize("text", ["<think>\nhm, so", "<think>hm, so\n", "<think>hm, so"])
def test_a_block_that_was_cut_at_the_limit_is_all_reasoning(text: str) -> None:
    assert split([text]) == ThinkPiece(reasoning="hm, so")


def test_a_block_that_the_prompt_opened_needs_no_tag() -> None:
    assert split(["hm</thi", "nk>Yes"], starts_inside=True) == ThinkPiece("hm", "Yes")


def test_text_is_held_back_only_while_it_could_be_a_tag() -> None:
    splitter = ThinkSplitter()
    assert splitter.feed("<t") == ThinkPiece()
    assert splitter.feed("able>") == ThinkPiece(content="<table>")
    assert splitter.feed("<") == ThinkPiece(content="<")


def test_reasoning_streams_before_its_block_is_closed() -> None:
    splitter = ThinkSplitter()
    assert splitter.feed("<think>first") == ThinkPiece(reasoning="first")
    assert splitter.feed(" second </") == ThinkPiece(reasoning=" second")
    assert splitter.feed("think> Yes") == ThinkPiece(content="Yes")
