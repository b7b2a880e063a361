import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.worker.backends.event_stream import EventStreamError, EventStreamParser

DATA = st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20)


def events_of(*chunks: bytes) -> list[bytes]:
    parser = EventStreamParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@given(st.lists(DATA, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(sent: list[str], ending: str, data: st.DataObject) -> None:
    stream = "".join(f": ping{ending}data: {text}{ending}{ending}" for text in sent).encode()
    # A last byte, so that a final CR is not waited for.
    stream += b":"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert events_of(*chunks) == [text.encode() for text in sent]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b": comment\n\n\n\ndata: a\n\n", [b"a"]),
        (b"data\n\n", [b""]),
        (b"data: never finished\n", []),
        (b"database: a\n\n", []),
    ],
)
def test_a_stream_is_read_as_the_standard_says(stream: bytes, events: list[bytes]) -> None:
    assert events_of(stream) == events


def test_an_event_is_out_as_soon_as_its_blank_line_is_in() -> None:
    parser = EventStreamParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\r\n\r") == [b"b"]


def test_an_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(EventStreamError):
        events_of(*[b"x" * 1024 * 1024] * 6)
