"""Relaying a reply while it is generated, truthfully: a pure state machine (ADR 0024).

The invariant: **text handed to the client is always a prefix of the final reply, or the stream ends in an error.** It
holds because of four facts, each kept in one place below.

1. What may be sent are the posts 1, 2, 3, … of *one* attempt, joined: ``_accept`` is the only place that adds to
   it, and only for the next number of the pinned attempt.
2. Until something was handed out, another attempt starts from nothing: ``_unpin`` forgets all of it.
3. Once something was handed out, the attempt never changes: whatever does not continue it ends the relay for good
   (``diverged``), and nothing is accepted after that.
4. The stream completes only through ``reconcile``, which compares what *was sent* with the final reply and sends the
   rest, or says that they differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from horde.oai.delta_entry import DeltaEntry

__all__ = ["DeltaRelay", "Piece", "Reconciled", "RelayOutcome"]

MAX_RELAYED_CHARACTERS = 1024 * 1024
"""Most characters relayed of one attempt: no reply is longer (its texts are at most 1 MiB together)."""

_MAX_ENDED_ATTEMPTS = 16
"""Attempts that may end before one is relayed; the Horde makes 3. After these the reply is delivered whole."""


class RelayOutcome(StrEnum):
    """How a relayed stream ended, or why it cannot go on (DLT-43, MET-30)."""

    EQUAL = "equal"
    """The final reply is what was relayed."""
    PREFIX = "prefix"
    """The final reply starts with what was sent."""
    MISMATCH = "mismatch"
    """The final reply does not, or it is another attempt's."""
    REPLACED_ATTEMPT = "replaced_attempt"
    """An entry of another attempt came."""
    ENDED = "ended"
    """The attempt's ended marker came; one status read tells whether the request faulted."""
    GAP = "gap"
    """A post's number was not the next one."""


_DIVERGED = frozenset({
    RelayOutcome.MISMATCH,
    RelayOutcome.REPLACED_ATTEMPT,
    RelayOutcome.ENDED,
    RelayOutcome.GAP,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """What is sent together: first the reasoning, then the text; either may be empty (DLT-19)."""

    reasoning: str = ""
    text: str = ""

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.reasoning or self.text)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What the final reply adds to what was sent.

    Attributes:
        outcome: How the relay ended; None when nothing was relayed and the reply goes out whole.
        rest: What is still to be sent before the finish chunk, reasoning first; empty when the stream diverged.
    """

    outcome: RelayOutcome | None
    rest: Piece

    @property
    def diverged(self) -> bool:
        """Whether the stream has to end in an error event."""
        return self.outcome in _DIVERGED


class DeltaRelay:
    """Decides what of a delta stream may be sent to one client.

    Entries go in with ``feed``, in stream order; what pacing really sent comes back with ``mark_sent``; the final reply
    is compared in ``reconcile``.

    Args:
        include_reasoning: Whether reasoning is sent (``horde.include_reasoning``, DLT-17); without it a post of
            reasoning alone only advances the sequence (DLT-20).

    Attributes:
        exposed: Something was handed out: this attempt is the stream's from now on (DLT-16).
        outcome: Why or how the relay ended; None while it can go on.
        gen: The pinned attempt.
        model: Model of the first post of the pinned attempt, when it told (DLT-21).
        worker: Worker of that post, when it told (DLT-22).
    """

    __slots__ = (
        "_ended_gens",
        "_full",
        "_include_reasoning",
        "_next_seq",
        "_reasoning",
        "_reasoning_length",
        "_sent_reasoning_length",
        "_sent_text_length",
        "_text",
        "_text_length",
        "exposed",
        "gen",
        "model",
        "outcome",
        "worker",
    )

    def __init__(self, *, include_reasoning: bool) -> None:
        self.exposed = False
        self.outcome: RelayOutcome | None = None
        self.gen: str | None = None
        self.model: str | None = None
        self.worker: str | None = None
        self._include_reasoning = include_reasoning
        self._ended_gens: set[str] = set()
        self._sent_reasoning_length = 0
        self._sent_text_length = 0
        self._forget_attempt()

    @property
    def diverged(self) -> bool:
        """Whether the stream has to end in an error event and the request be cancelled (DLT-28, DLT-29, DLT-31).

        Under the outcome ``ENDED`` one status read decides which event: a faulted request is ``ChatRequestFaulted``.
        """
        return self.outcome in _DIVERGED

    def feed(self, entries: Sequence[DeltaEntry]) -> list[Piece]:
        """Take the entries of one read and return what they let through, a piece for each post that has any.

        Read together matters before exposure: nothing of them was sent yet, so a post whose attempt ends among them is
        dropped (DLT-37), and whatever else breaks the attempt among them lets the next one begin anew.

        Returns:
            The pieces, in order; none once ``outcome`` is set. A divergence drops the whole read, since text that was
            not sent is dropped then (U29).
        """
        if self.outcome is not None:
            return []
        pieces = self._relay(entries) if self.exposed else self._look_for_attempt(entries)
        if pieces:
            self.exposed = True
        return pieces

    def mark_sent(self, piece: Piece) -> None:
        """Count what was sent to the client, in the order in which ``feed`` returned it.

        Raises:
            ValueError: More was sent than was handed out.
        """
        self._sent_reasoning_length += len(piece.reasoning)
        self._sent_text_length += len(piece.text)
        if self._sent_reasoning_length > self._reasoning_length or self._sent_text_length > self._text_length:
            raise ValueError("More was sent than the relay handed out.")

    def is_complete(self, *, generation_id: str | None, text: str, reasoning: str | None) -> bool:
        """Whether all posts of the final reply have been fed, so that its stream need not be read once more.

        Args:
            generation_id: As in ``reconcile``, like the others.
            text: Its length says enough here: whether it is the same text, ``reconcile`` says.
            reasoning: Likewise.
        """
        final_reasoning = (reasoning or "") if self._include_reasoning else ""
        lengths = self._text_length, self._reasoning_length
        return generation_id is not None and generation_id == self.gen and lengths == (len(text), len(final_reasoning))

    def reconcile(self, *, generation_id: str | None, text: str, reasoning: str | None) -> Reconciled:
        """Compare the final reply with what was sent, and end the relay.

        What pacing still holds is part of the rest, so it is discarded there and not sent twice.

        Args:
            generation_id: Id of the attempt that became the reply; None when the Horde does not tell.
            text: Its whole content, empty when it has none.
            reasoning: Its whole reasoning.

        Returns:
            The rest (DLT-25, DLT-26, DLT-34, DLT-41), or a divergence (DLT-27). A relay that never exposed anything
            returns the whole reply and no outcome.
        """
        final_reasoning = (reasoning or "") if self._include_reasoning else ""
        if not self.exposed:
            return Reconciled(None, Piece(final_reasoning, text))
        if self.outcome is None:
            self.outcome = self._compare(generation_id, text)
        if self.diverged:
            return Reconciled(self.outcome, Piece())
        return Reconciled(
            self.outcome,
            Piece(self._rest_of_reasoning(final_reasoning), text[self._sent_text_length :]),
        )

    def _compare(self, generation_id: str | None, text: str) -> RelayOutcome:
        if generation_id is not None and generation_id != self.gen:
            return RelayOutcome.MISMATCH
        accepted = "".join(self._text)
        if text == accepted:
            return RelayOutcome.EQUAL
        if text.startswith(accepted[: self._sent_text_length]):
            return RelayOutcome.PREFIX
        return RelayOutcome.MISMATCH

    def _rest_of_reasoning(self, final_reasoning: str) -> str:
        sent = "".join(self._reasoning)[: self._sent_reasoning_length]
        return final_reasoning[len(sent) :] if final_reasoning.startswith(sent) else ""

    def _relay(self, entries: Sequence[DeltaEntry]) -> list[Piece]:
        """Continue the attempt that the client holds part of, or diverge."""
        pieces: list[Piece] = []
        for entry in entries:
            if entry.is_marker:
                # The marker of another attempt says nothing about this one: its own may come late, after a new one's
                # first post. If this attempt is over as well, the reply's generation id will tell.
                if entry.gen == self.gen:
                    return self._diverge(RelayOutcome.ENDED)
            elif entry.gen != self.gen:
                return self._diverge(RelayOutcome.REPLACED_ATTEMPT)
            elif entry.seq != self._next_seq:
                return self._diverge(RelayOutcome.GAP)
            elif piece := self._accept(entry):
                pieces.append(piece)
        return pieces

    def _diverge(self, outcome: RelayOutcome) -> list[Piece]:
        self.outcome = outcome
        return []

    def _look_for_attempt(self, entries: Sequence[DeltaEntry]) -> list[Piece]:
        """Follow the attempts while nothing was sent, and return what the one that is left adds."""
        pieces: list[Piece] = []
        for entry in entries:
            if entry.is_marker:
                breaks_off = entry.gen == self.gen
                self._remember_end(entry.gen)
            else:
                breaks_off = self.gen is not None and (entry.gen != self.gen or entry.seq != self._next_seq)
            if breaks_off:
                self._unpin()
                pieces.clear()
            if entry.is_marker or not self._belongs(entry):
                continue
            if piece := self._accept(entry):
                pieces.append(piece)
        return pieces

    def _belongs(self, entry: DeltaEntry) -> bool:
        """Whether a post is of the pinned attempt, which a post numbered 1 may become (DLT-15, DLT-39)."""
        if self.gen is not None:
            return True
        if entry.seq != 1 or entry.gen in self._ended_gens or len(self._ended_gens) >= _MAX_ENDED_ATTEMPTS:
            return False
        self.gen, self.model, self.worker = entry.gen, entry.model, entry.worker
        return True

    def _unpin(self) -> None:
        """Give the pinned attempt up (DLT-36, DLT-38): the next one's first post can pin again."""
        if self.gen is not None:
            self._remember_end(self.gen)
        self.gen = self.model = self.worker = None
        self._forget_attempt()

    def _remember_end(self, gen: str) -> None:
        if len(self._ended_gens) < _MAX_ENDED_ATTEMPTS:
            self._ended_gens.add(gen)

    def _forget_attempt(self) -> None:
        self._next_seq = 1
        self._full = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_length = 0
        self._reasoning_length = 0

    def _accept(self, entry: DeltaEntry) -> Piece:
        """Advance the sequence and return what the post lets through."""
        self._next_seq += 1
        piece = Piece(entry.reasoning if self._include_reasoning else "", entry.text)
        length = self._text_length + self._reasoning_length + len(piece.text) + len(piece.reasoning)
        if self._full or length > MAX_RELAYED_CHARACTERS:
            self._full = True  # For good: a later post must not follow one that was left out.
            return Piece()
        if piece.text:
            self._text.append(piece.text)
            self._text_length += len(piece.text)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
            self._reasoning_length += len(piece.reasoning)
        return piece
