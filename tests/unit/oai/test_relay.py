"""Every row of the relay's event table (seed section "Relayed deltas"), as exact values."""

import pytest

from horde.oai.delta_entry import DeltaEntry
from horde.oai.relay import MAX_RELAYED_CHARACTERS, DeltaRelay, Piece, Reconciled, RelayOutcome


def post(seq: int, text: str = "", reasoning: str = "", *, gen: str = "g1", model: str | None = "m") -> DeltaEntry:
    return DeltaEntry(f"{seq}-0", gen, seq, text, reasoning, f"worker of {gen}", model)


def ended(gen: str = "g1", reason: str = "lease_expired") -> DeltaEntry:
    return DeltaEntry("9-0", gen, ended=reason)


def relay_that_sent(*texts: str) -> DeltaRelay:
    """Return a relay that handed out and sent these posts of attempt g1."""
    relay = DeltaRelay(include_reasoning=True)
    for seq, text in enumerate(texts, 1):
        for piece in relay.feed([post(seq, text)]):
            relay.mark_sent(piece)
    return relay


def pinned(relay: DeltaRelay) -> tuple[str | None, str | None]:
    return relay.gen, relay.worker


def final(
    relay: DeltaRelay, text: str, reasoning: str | None = None, *, generation_id: str | None = "g1"
) -> Reconciled:
    return relay.reconcile(generation_id=generation_id, text=text, reasoning=reasoning)


# The posts of one attempt


@pytest.mark.rule("DLT-15", "DLT-18")
def test_the_posts_of_an_attempt_pass_in_their_order() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([post(1, "Hel"), post(2, "lo")]) == [Piece(text="Hel"), Piece(text="lo")]
    assert relay.feed([post(3, " you")]) == [Piece(text=" you")]
    assert (relay.gen, relay.outcome, relay.diverged) == ("g1", None, False)


@pytest.mark.rule("DLT-16")
def test_the_first_post_that_sends_anything_exposes_the_stream() -> None:
    relay = DeltaRelay(include_reasoning=True)
    assert not relay.exposed

    relay.feed([post(1)])
    assert not relay.exposed

    relay.feed([post(2, "Hi")])
    assert relay.exposed


@pytest.mark.rule("DLT-15")
def test_an_attempt_whose_first_post_was_missed_is_not_relayed() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([post(2, "lo"), post(3, "!")]) == []
    assert final(relay, "Hello!") == Reconciled(None, Piece(text="Hello!"))


@pytest.mark.rule("DLT-17", "DLT-19")
def test_reasoning_passes_ahead_of_the_text_of_its_post() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([post(1, "", "Well"), post(2, "Hi", ", so")]) == [Piece("Well"), Piece(", so", "Hi")]


@pytest.mark.rule("DLT-17", "DLT-20")
def test_hidden_reasoning_advances_the_sequence_and_sends_nothing() -> None:
    relay = DeltaRelay(include_reasoning=False)

    assert relay.feed([post(1, "", "Well")]) == []
    assert not relay.exposed
    assert relay.feed([post(2, "Hi", "!")]) == [Piece(text="Hi")]
    assert final(relay, "Hi", "Well!").rest.reasoning == ""


@pytest.mark.rule("DLT-21", "DLT-22")
def test_model_and_worker_are_those_of_the_first_post() -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([post(1, "", "hidden", model="first"), post(2, "Hi", model="second")])

    assert (relay.model, relay.worker) == ("first", "worker of g1")


@pytest.mark.rule("DLT-21", "DLT-22")
def test_model_and_worker_are_none_when_the_first_post_does_not_tell() -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([DeltaEntry("1-0", "g1", 1, "Hi")])

    assert relay.exposed
    assert relay.model is None
    assert relay.worker is None


# After exposure: the final reply


@pytest.mark.rule("DLT-25", "DLT-43")
def test_a_final_reply_equal_to_what_was_relayed_has_no_rest() -> None:
    assert final(relay_that_sent("Hel", "lo"), "Hello") == Reconciled(RelayOutcome.EQUAL, Piece())


@pytest.mark.rule("DLT-26", "DLT-41", "DLT-43")
def test_a_final_reply_that_starts_with_what_was_relayed_gives_the_rest() -> None:
    assert final(relay_that_sent("Hel"), "Hello") == Reconciled(RelayOutcome.PREFIX, Piece(text="lo"))


@pytest.mark.rule("DLT-27", "DLT-43")
@pytest.mark.parametrize("text", ["", "He", "hello", "xHel", "Good"])
def test_a_final_reply_that_does_not_start_with_what_was_sent_diverges(text: str) -> None:
    reconciled = final(relay_that_sent("Hel"), text)

    assert reconciled == Reconciled(RelayOutcome.MISMATCH, Piece())
    assert reconciled.diverged


@pytest.mark.rule("DLT-27", "DLT-35")
def test_a_final_reply_of_another_attempt_diverges_whatever_its_text() -> None:
    reconciled = final(relay_that_sent("Hel"), "Hello", generation_id="g2")

    assert reconciled.outcome is RelayOutcome.MISMATCH


def test_a_final_reply_without_an_id_is_compared_by_its_text() -> None:
    assert final(relay_that_sent("Hel"), "Hello", generation_id=None).outcome is RelayOutcome.PREFIX


@pytest.mark.rule("DLT-41")
def test_text_handed_out_and_not_sent_is_part_of_the_rest() -> None:
    relay = DeltaRelay(include_reasoning=True)
    relay.feed([post(1, "Hello there")])
    relay.mark_sent(Piece(text="Hello"))

    assert final(relay, "Hello there") == Reconciled(RelayOutcome.EQUAL, Piece(text=" there"))


def test_only_what_was_sent_has_to_be_the_beginning_of_the_final_reply() -> None:
    relay = DeltaRelay(include_reasoning=True)
    relay.feed([post(1, "Hello there")])
    relay.mark_sent(Piece(text="Hello"))

    assert final(relay, "Hello you") == Reconciled(RelayOutcome.PREFIX, Piece(text=" you"))


@pytest.mark.rule("DLT-33", "DLT-34")
def test_the_rest_of_the_reasoning_precedes_the_rest_of_the_text() -> None:
    relay = DeltaRelay(include_reasoning=True)
    for piece in relay.feed([post(1, "Hel", "We")]):
        relay.mark_sent(piece)

    assert final(relay, "Hello", "Well") == Reconciled(RelayOutcome.PREFIX, Piece("ll", "lo"))


@pytest.mark.rule("DLT-33", "DLT-34")
@pytest.mark.parametrize("reasoning", [None, "", "W", "Else"])
def test_reasoning_that_does_not_continue_what_was_sent_is_left_out_and_diverges_nothing(reasoning: str | None) -> None:
    relay = DeltaRelay(include_reasoning=True)
    for piece in relay.feed([post(1, "Hel", "We")]):
        relay.mark_sent(piece)

    assert final(relay, "Hello", reasoning) == Reconciled(RelayOutcome.PREFIX, Piece(text="lo"))


@pytest.mark.rule("DLT-14")
def test_a_reply_that_was_never_relayed_is_returned_whole() -> None:
    assert final(DeltaRelay(include_reasoning=True), "Hi", "Hm") == Reconciled(None, Piece("Hm", "Hi"))
    assert final(DeltaRelay(include_reasoning=False), "Hi", "Hm") == Reconciled(None, Piece(text="Hi"))


@pytest.mark.rule("DLT-14")
def test_deltas_that_stop_leave_the_rest_to_the_final_reply() -> None:
    relay = relay_that_sent("One", ", two")
    relay.feed([])

    assert final(relay, "One, two, three").rest == Piece(text=", three")


# After exposure: what ends the relay


@pytest.mark.rule("DLT-28", "DLT-35", "DLT-43")
@pytest.mark.parametrize("seq", [1, 2, 5])
def test_after_exposure_a_post_of_another_attempt_diverges(seq: int) -> None:
    relay = relay_that_sent("Hel")

    assert relay.feed([post(seq, "lo", gen="g2")]) == []
    assert (relay.outcome, relay.diverged) == (RelayOutcome.REPLACED_ATTEMPT, True)


@pytest.mark.rule("DLT-29", "DLT-43")
@pytest.mark.parametrize("reason", ["lease_expired", "faulted", "refused", "cancelled", "expired", "anything"])
def test_after_exposure_the_ended_marker_of_the_attempt_diverges(reason: str) -> None:
    relay = relay_that_sent("Hel")

    assert relay.feed([ended(reason=reason)]) == []
    assert (relay.outcome, relay.diverged) == (RelayOutcome.ENDED, True)


def test_after_exposure_the_late_marker_of_another_attempt_changes_nothing() -> None:
    relay = relay_that_sent("Hel")

    assert relay.feed([ended("g0"), post(2, "lo")]) == [Piece(text="lo")]
    assert relay.outcome is None


@pytest.mark.rule("DLT-31", "DLT-43")
@pytest.mark.parametrize("seq", [1, 2, 4, 9])
def test_after_exposure_a_number_out_of_order_diverges(seq: int) -> None:
    relay = relay_that_sent("He", "l")

    assert relay.feed([post(seq, "lo")]) == []
    assert (relay.outcome, relay.diverged) == (RelayOutcome.GAP, True)


def test_a_divergence_drops_the_posts_read_with_it() -> None:
    relay = relay_that_sent("Hel")

    assert relay.feed([post(2, "lo"), ended()]) == []


def test_a_relay_that_diverged_stays_so() -> None:
    relay = relay_that_sent("Hel")
    relay.feed([ended()])

    assert relay.feed([post(2, "lo")]) == []
    assert final(relay, "Hello") == Reconciled(RelayOutcome.ENDED, Piece())


# Before exposure


@pytest.mark.rule("DLT-36", "DLT-39")
def test_before_exposure_a_marker_unpins_and_the_next_attempt_is_relayed() -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([post(1, "", "hidden")])

    assert relay.feed([ended()]) == []
    assert pinned(relay) == (None, None)
    assert relay.feed([post(1, "Hi", gen="g2")]) == [Piece(text="Hi")]
    assert pinned(relay) == ("g2", "worker of g2")


@pytest.mark.rule("DLT-37")
def test_before_exposure_a_post_read_with_its_attempts_marker_is_dropped() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([post(1, "Hel"), post(2, "lo"), ended()]) == []
    assert (relay.exposed, relay.gen, relay.outcome) == (False, None, None)


@pytest.mark.rule("DLT-37", "DLT-39")
def test_before_exposure_an_ended_attempt_and_the_next_one_may_come_in_one_read() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([post(1, "Hel", "W"), ended(), post(1, "Good", gen="g2")]) == [Piece(text="Good")]
    relay.mark_sent(Piece(text="Good"))
    assert final(relay, "Good!", generation_id="g2") == Reconciled(RelayOutcome.PREFIX, Piece(text="!"))


@pytest.mark.rule("DLT-36")
def test_before_exposure_the_marker_of_another_attempt_leaves_the_pinned_one() -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([post(1, "", "hidden")])

    assert relay.feed([ended("g0"), post(2, "Hi")]) == [Piece(text="Hi")]


@pytest.mark.rule("DLT-38", "DLT-39")
@pytest.mark.parametrize("seq", [1, 3])
def test_before_exposure_a_gap_unpins_and_only_another_attempt_can_pin(seq: int) -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([post(1, "", "hidden")])

    assert relay.feed([post(seq, "Hi")]) == []
    assert relay.feed([post(1, "Hi")]) == []
    assert pinned(relay) == (None, None)
    assert relay.feed([post(1, "Hi", gen="g2")]) == [Piece(text="Hi")]


@pytest.mark.rule("DLT-38")
def test_a_gap_within_the_first_read_exposes_nothing() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([post(1, "Hel"), post(3, "!")]) == []
    assert (relay.exposed, relay.outcome) == (False, None)


@pytest.mark.rule("DLT-39")
def test_before_exposure_the_first_post_of_another_attempt_takes_over() -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([post(1, "", "hidden")])

    assert relay.feed([post(1, "Hi", gen="g2")]) == [Piece(text="Hi")]


@pytest.mark.rule("DLT-36")
def test_an_attempt_that_ended_never_pins_again() -> None:
    relay = DeltaRelay(include_reasoning=True)

    assert relay.feed([ended("g1"), post(1, "Hi")]) == []


def test_after_many_ended_attempts_the_reply_is_left_whole() -> None:
    relay = DeltaRelay(include_reasoning=True)
    relay.feed([ended(f"g{number}") for number in range(100)])

    assert relay.feed([post(1, "Hi", gen="another")]) == []
    assert final(relay, "Hi").rest == Piece(text="Hi")


# Bounds and misuse


def test_a_flood_of_text_stops_at_the_bound_and_the_final_reply_completes_it() -> None:
    relay = DeltaRelay(include_reasoning=True)
    text = "x" * MAX_RELAYED_CHARACTERS
    for piece in relay.feed([post(1, text), post(2, "over"), post(3, "")]):
        relay.mark_sent(piece)

    assert relay.feed([post(4, "more")]) == []
    assert final(relay, text + "over, more") == Reconciled(RelayOutcome.PREFIX, Piece(text="over, more"))


def test_sending_more_than_was_handed_out_is_an_error() -> None:
    with pytest.raises(ValueError, match="More was sent"):
        relay_that_sent("Hel").mark_sent(Piece(text="lo"))


# Whether anything of the final reply may still be unread


@pytest.mark.parametrize(
    ("generation_id", "text", "reasoning", "complete"),
    [
        ("g1", "Hello", None, True),
        ("g1", "Hello you", None, False),
        ("g1", "Hello", "Hm", False),
        ("g2", "Hello", None, False),
        (None, "Hello", None, False),
    ],
    ids=["all is there", "text is missing", "reasoning is missing", "another attempt's", "an unknown attempt's"],
)
def test_a_relay_is_complete_once_it_was_fed_all_of_the_final_reply(
    generation_id: str | None, text: str, reasoning: str | None, *, complete: bool
) -> None:
    relay = relay_that_sent("Hel", "lo")

    assert relay.is_complete(generation_id=generation_id, text=text, reasoning=reasoning) is complete


def test_reasoning_that_is_not_sent_is_not_missing() -> None:
    relay = DeltaRelay(include_reasoning=False)
    relay.feed([post(1, "Hi", "Hm")])

    assert relay.is_complete(generation_id="g1", text="Hi", reasoning="Hm")
