import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from horde.oai.pacing import MAX_INTERVAL_SECONDS, Pacer, pieces_per_post, split_text
from horde.oai.relay import Piece

FAMILY = "👩‍👩‍👧‍👦"
CONJUNCT = "क्ष"

# Characters that join their neighbours into grapheme clusters, beside ordinary ones.
texts = st.text(
    st.sampled_from([*"ab .\r\n\t", *"éあ漢。한ก็", "\u0301", "\u200d", "\u0600", "👩", "👍", "🏽", "🇩", "🇪", *CONJUNCT])
)


def boundaries(text: str) -> set[int]:
    """Return the places of a text at which no grapheme cluster is cut."""
    places, position = {0}, 0
    for cluster in regex.findall(r"\X", text):
        position += len(cluster)
        places.add(position)
    return places


def ends(pieces: list[str]) -> list[int]:
    places, position = [], 0
    for piece in pieces:
        position += len(piece)
        places.append(position)
    return places


# Splitting


@pytest.mark.rule("DLT-23")
def test_a_text_is_split_before_words() -> None:
    assert split_text("The quick brown fox jumps", 5) == ["The quick", " brown", " fox", " jumps"]
    assert split_text("The quick brown fox jumps", 2) == ["The quick brown", " fox jumps"]
    assert split_text("The quick", 1) == ["The quick"]


def test_a_text_without_spaces_is_split_between_grapheme_clusters() -> None:
    assert split_text("漢字かな交じり文。終", 20) == ["漢", "字", "か", "な", "交", "じ", "り", "文。", "終"]
    assert split_text("0123456789" * 3, 3) == ["0123456789"] * 3


@pytest.mark.parametrize("cluster", [FAMILY, "e\u0301\u0302", "\r\n", CONJUNCT, "👍🏽", "🇩🇪", "ก็"], ids=ascii)
def test_a_grapheme_cluster_is_never_split(cluster: str) -> None:
    assert all(len(piece) % len(cluster) == 0 for piece in split_text(cluster * 40, 1000))


def test_a_cluster_that_began_in_the_post_before_is_not_split_from_what_continues_it() -> None:
    assert split_text("🇪" + "🇫🇷" * 12, 100, before="🇩") == ["🇪", *["🇫🇷"] * 12]


def test_a_cluster_that_several_posts_build_is_not_split_from_what_continues_it() -> None:
    pacer = Pacer()
    for now, text in enumerate(("🇩", "🇪", "🇫🇷" * 12)):
        pacer.add(now, Piece(text=text))

    assert [pacer.pop_due(now) for now in (2.0, 2.1)] == [[Piece(text="🇩🇪🇫🇷")], [Piece(text="🇫🇷")]]


@given(texts, st.integers(1, 40), texts)
def test_pieces_are_the_text_and_cut_no_grapheme_cluster(text: str, count: int, earlier: str) -> None:
    clusters = regex.findall(r"\X", earlier)
    pieces = split_text(text, count, before=clusters[-1] if clusters else "")

    assert "".join(pieces) == text
    assert len(pieces) <= count
    assert all(pieces)
    allowed = boundaries(earlier + text)
    assert all(len(earlier) + end in allowed for end in ends(pieces)[:-1])


# Scheduling


def words(count: int) -> str:
    return " ".join(["word"] * count)


@pytest.mark.rule("DLT-23")
def test_a_post_flows_over_the_expected_interval_and_begins_at_once() -> None:
    pacer = Pacer()
    pacer.add(10.0, Piece(text="one two three four"))

    sent = []
    while (due := pacer.next_due()) is not None:
        sent.append((due, pacer.pop_due(due)))

    assert sent == [
        (10.0, [Piece(text="one")]),
        (10.25, [Piece(text=" two")]),
        (10.5, [Piece(text=" three")]),
        (10.75, [Piece(text=" four")]),
    ]


def test_what_is_left_of_a_post_goes_ahead_of_the_next_one_at_once() -> None:
    pacer = Pacer()
    pacer.add(0.0, Piece(text="one two"))
    pacer.pop_due(0.0)
    pacer.add(0.3, Piece(text=" three four"))

    assert pacer.pop_due(0.3) == [Piece(text=" two three")]


@pytest.mark.rule("DLT-19")
def test_the_reasoning_of_a_post_goes_ahead_of_its_text() -> None:
    pacer = Pacer()
    pacer.add(0.0, Piece("Let me see", "It is"))

    assert pacer.pop_due(0.0) == [Piece("Let")]
    assert pacer.pop_due(5.0) == [Piece(" me see", "It is")]


@pytest.mark.rule("DLT-19")
def test_reasoning_after_text_is_not_merged_ahead_of_it() -> None:
    pacer = Pacer(enabled=False)
    for post in (Piece("a", "b"), Piece("", "c"), Piece("d"), Piece("e", "f")):
        pacer.add(0.0, post)

    assert pacer.pop_due(0.0) == [Piece("a", "bc"), Piece("de", "f")]


def test_the_interval_is_learned_from_the_arrivals() -> None:
    pacer = Pacer()
    for index in range(12):
        pacer.add(index * 0.5, Piece(text="a b"))

    assert pacer.interval_seconds == pytest.approx(0.5, rel=0.01)


def test_posts_read_together_say_nothing_about_the_interval() -> None:
    pacer = Pacer()
    for _ in range(10):
        pacer.add(3.0, Piece(text="a"))

    assert pacer.interval_seconds == 1.0


def test_a_slow_worker_does_not_make_text_that_is_there_wait_for_ever() -> None:
    pacer = Pacer()
    for index in range(10):
        pacer.add(index * 60.0, Piece(text="a b"))

    assert pacer.interval_seconds <= MAX_INTERVAL_SECONDS


@pytest.mark.parametrize(
    ("streams", "pieces"), [(0, 20), (1, 20), (200, 20), (400, 10), (1000, 4), (5000, 1), (10**6, 1)]
)
def test_a_post_has_fewer_pieces_when_more_streams_are_active(streams: int, pieces: int) -> None:
    assert pieces_per_post(1.0, streams) == pieces

    pacer = Pacer()
    pacer.add(0.0, Piece(text=words(100)), active_streams=streams)
    sent: list[Piece] = []
    while (due := pacer.next_due()) is not None:
        sent += pacer.pop_due(due)
    assert len(sent) == pieces


@pytest.mark.rule("DLT-23")
def test_without_pacing_a_post_is_one_piece_at_once() -> None:
    pacer = Pacer(enabled=False)
    pacer.add(1.0, Piece("Hm", words(100)))

    assert pacer.pop_due(1.0) == [Piece("Hm", words(100))]
    assert pacer.next_due() is None


def test_a_flush_gives_what_is_left_at_once() -> None:
    pacer = Pacer()
    pacer.add(0.0, Piece(text="one two three"))
    pacer.pop_due(0.0)

    assert pacer.flush() == [Piece(text=" two three")]
    assert (pacer.flush(), pacer.next_due()) == ([], None)


def test_what_is_discarded_never_comes() -> None:
    pacer = Pacer()
    pacer.add(0.0, Piece(text="one two three"))
    pacer.discard()

    assert (pacer.pop_due(100.0), pacer.flush(), pacer.next_due()) == ([], [], None)


def test_nothing_is_due_of_an_empty_post() -> None:
    pacer = Pacer()
    pacer.add(0.0, Piece())

    assert pacer.next_due() is None


@given(
    st.lists(st.tuples(st.floats(0, 3), texts, texts, st.integers(0, 9000)), max_size=12),
    st.booleans(),
)
def test_nothing_is_lost_reordered_or_held_longer_than_an_interval(
    posts: list[tuple[float, str, str, int]],
    enabled: bool,  # noqa: FBT001 -- hypothesis passes it by position
) -> None:
    pacer = Pacer(enabled=enabled)
    now, expected, sent, deadline = 0.0, "", "", 0.0

    def send(pieces: list[Piece]) -> None:
        nonlocal sent
        sent += "".join(f"{piece.reasoning.lower()}{piece.text.upper()}" for piece in pieces)

    for gap, reasoning, text, streams in posts:
        while (due := pacer.next_due()) is not None and due < now + gap:
            assert due <= deadline
            send(pacer.pop_due(due))
        now += gap
        pacer.add(now, Piece(reasoning, text), active_streams=streams)
        deadline = now + pacer.interval_seconds
        expected += reasoning.lower() + text.upper()
        due = pacer.next_due()
        assert due is None or due <= now
        send(pacer.pop_due(now))
        assert bool(sent) == bool(expected)
    while (due := pacer.next_due()) is not None:
        assert due <= deadline
        send(pacer.pop_due(due))

    assert sent == expected
