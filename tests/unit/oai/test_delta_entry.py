import pytest

from horde.oai.delta_entry import DeltaEntry, parse_delta_entry


def parse(**fields: bytes) -> DeltaEntry | None:
    return parse_delta_entry(b"7-0", [part for name, value in fields.items() for part in (name.encode(), value)])


def test_a_whole_entry_is_read() -> None:
    entry = parse(gen=b"g", seq=b"3", text="größe".encode(), reasoning=b"hm", worker=b"w", model=b"m")

    assert entry == DeltaEntry("7-0", "g", 3, "größe", "hm", "w", "m")


def test_an_ended_marker_is_read() -> None:
    entry = parse(gen=b"g", ended=b"faulted")

    assert entry == DeltaEntry("7-0", "g", ended="faulted")
    assert entry is not None
    assert entry.is_marker


@pytest.mark.rule("DLT-21", "DLT-22")
def test_worker_and_model_may_be_left_out() -> None:
    assert parse(gen=b"g", seq=b"1", text=b"a") == DeltaEntry("7-0", "g", 1, "a")
    assert parse(gen=b"g", seq=b"1", reasoning=b"a", worker=b"", model=b"") == DeltaEntry("7-0", "g", 1, "", "a")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seq": b"1", "text": b"a"},
        {"gen": b"", "seq": b"1", "text": b"a"},
        {"gen": b"g", "text": b"a"},
        {"gen": b"g", "seq": b"1"},
        {"gen": b"g", "seq": b"0", "text": b"a"},
        {"gen": b"g", "seq": b"-1", "text": b"a"},
        {"gen": b"g", "seq": b"1_0", "text": b"a"},
        {"gen": b"g", "seq": b" 1", "text": b"a"},
        {"gen": b"g", "seq": b"9" * 5000, "text": b"a"},
        {"gen": b"g", "seq": b"one", "text": b"a"},
        {"gen": b"g", "seq": b"1", "text": b"\xff"},
        {"gen": b"g", "seq": b"1", "text": b"\xed\xa0\x80"},
        {"gen": b"g", "seq": b"1", "text": b"a", "reasoning": b"\xc3"},
        {"gen": b"\xff", "seq": b"1", "text": b"a"},
        {"gen": b"g" * 129, "seq": b"1", "text": b"a"},
        {"gen": b"g", "seq": b"1", "text": b"a", "model": b"m" * 1025},
        {"gen": b"g", "seq": b"1", "text": b"a", "worker": b"\xff"},
        {"ended": b"faulted"},
        {"gen": b"g", "ended": b"\xff"},
    ],
    ids=str,
)
def test_an_entry_with_a_missing_or_malformed_field_is_no_entry(fields: dict[str, bytes]) -> None:
    assert parse(**fields) is None


@pytest.mark.parametrize("fields", [[], [b"gen"], [b"gen", b"g", b"seq"]])
def test_an_odd_number_of_names_and_values_is_no_entry(fields: list[bytes]) -> None:
    assert parse_delta_entry(b"7-0", fields) is None
