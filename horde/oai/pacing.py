"""Pacing of relayed text: a post that comes once a second becomes a flow of small pieces (DLT-23, decision U29).

Pure: the time is passed in. What holds, in this order of importance:

- nothing is lost, added or reordered: the pieces joined are the posts joined, reasoning and text in their order;
- no cut is made inside a grapheme cluster, also not one that began in the post before (a worker that cuts one itself
  between two posts cannot be helped: the first piece of each post goes at once);
- no text waits longer than the interval at which posts come, and none once the next post is there.
"""

import re

import regex

from horde.oai.relay import Piece

__all__ = ["Pacer", "pieces_per_post", "split_text"]

MIN_PIECE_SECONDS = 0.05
"""Least time between two pieces of one stream; faster is not seen by a reader."""

DEFAULT_INTERVAL_SECONDS = 1.0
"""Interval expected until two posts told otherwise (the Horde asks workers for about one a second)."""

MAX_INTERVAL_SECONDS = 2.0
"""Longest interval to spread over: text that is there is not held back longer because the worker is slow."""

MAX_PIECES_PER_SECOND = 4000.0
"""Pieces that one process sends in a second over all its streams, beyond the first of each post."""

_BURST_SECONDS = 0.02
"""Posts closer together were read together and say nothing about the interval."""

_LEARNING = 0.5
"""Weight of the newest interval in the expected one."""

_MAX_UNIT_LENGTH = 24
"""Longest run without white space that is not cut, in characters; a longer one is cut between grapheme clusters."""

_ASCII_UNITS = re.compile(r"\s*+\S+|\s+")

# Scripts that write without spaces are cut at each grapheme cluster; punctuation stays with what is before it.
_UNITS = regex.compile(
    r"""
    \s*+ (?:
        (?=[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]) \X (?: (?=\p{P}) \X )*
      | (?: (?![\s\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]) \X )+
    )
    | \s+
    """,
    regex.VERBOSE,
)
_CLUSTERS = regex.compile(r"\X")


def pieces_per_post(interval_seconds: float, active_streams: int) -> int:
    """Return into how many pieces a post may be split: fewer as the streams of the process grow, at least one."""
    share = MAX_PIECES_PER_SECOND / max(active_streams, 1)
    return max(1, int(interval_seconds * min(1 / MIN_PIECE_SECONDS, share)))


def split_text(text: str, count: int, *, before: str = "") -> list[str]:
    """Split a text before words, or between grapheme clusters where it has none, into pieces of about one length.

    Args:
        text: Text to split.
        count: Most pieces.
        before: Grapheme cluster that was sent last; a cluster that it begins is not cut from it within ``text``.

    Returns:
        The pieces in order; joined they are the text. None is empty.
    """
    if not text:
        return []
    if count <= 1:
        return [text]
    units = _units(before + text)
    pieces: list[str] = []
    start = end = len(before)
    position = 0
    for unit in units:
        position += len(unit)
        if position <= start:
            continue
        end = position
        # Cut where the text is due for its next piece: after i pieces, at least i / count of it.
        if (end - len(before)) * count >= len(text) * (len(pieces) + 1):
            pieces.append(text[start - len(before) : end - len(before)])
            start = end
    if start < end:
        pieces.append(text[start - len(before) : end - len(before)])
    return pieces


def _units(text: str) -> list[str]:
    """Cut a text everywhere it may be cut."""
    if text.isascii():
        units: list[str] = _ASCII_UNITS.findall(text)
    else:
        units = _UNITS.findall(text)
    if max(map(len, units), default=0) <= _MAX_UNIT_LENGTH:
        return units
    return [part for unit in units for part in (_CLUSTERS.findall(unit) if len(unit) > _MAX_UNIT_LENGTH else (unit,))]


def _last_cluster(before: str, pieces: list[str]) -> str:
    """Return the grapheme cluster that pieces end with, from its beginning, which may be in what was sent before."""
    text = pieces[-1] if len(pieces) > 1 else before + pieces[-1]
    if text.isascii():
        return text[-1:]
    clusters: list[str] = _CLUSTERS.findall(text)
    return clusters[-1] if clusters else ""


class Pacer:
    """Schedules the pieces of one stream.

    Only one post is ever spread: when the next arrives, what is left of the one before is due at once, ahead of it. So
    nothing waits longer than one interval, and the first piece of each post goes at once.

    Args:
        enabled: Whether posts are split; without it each post is one piece, due at once.
    """

    __slots__ = (
        "_before_reasoning",
        "_before_text",
        "_began",
        "_due",
        "_enabled",
        "_interval",
        "_last_arrival",
        "_pieces",
        "_sent",
        "_step",
    )

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._interval = DEFAULT_INTERVAL_SECONDS
        self._last_arrival: float | None = None
        self._due: list[Piece] = []
        """What is due already: of earlier posts."""
        self._pieces: list[Piece] = []
        """Those of the last post, of which ``_sent`` are gone; number n is due n times ``_step`` after ``_began``."""
        self._sent = 0
        self._began = 0.0
        self._step = 0.0
        self._before_reasoning = ""
        self._before_text = ""

    @property
    def interval_seconds(self) -> float:
        """Time until the next post, as learned from those that came."""
        return self._interval

    def add(self, now: float, post: Piece, *, active_streams: int = 1) -> None:
        """Take a post that has just arrived.

        Args:
            now: The time, in seconds, on the clock of ``pop_due``.
            post: What the post lets through.
            active_streams: Streams being relayed by the process.
        """
        self._learn(now)
        self._due += self._pieces[self._sent :]
        if not post:
            self._pieces = []
        elif self._enabled:
            self._pieces = self._split(post, pieces_per_post(self._interval, active_streams))
            self._step = self._interval / len(self._pieces)
        else:
            self._pieces = [post]
        self._sent = 0
        self._began = now

    def next_due(self) -> float | None:
        """Return the time at which there is something to send, None when nothing is left."""
        if self._due:
            return self._began
        return self._began + self._step * self._sent if self._sent < len(self._pieces) else None

    def pop_due(self, now: float) -> list[Piece]:
        """Remove and return what is due, merged into as few pieces as keep the order (usually one)."""
        due, self._due = self._due, []
        while self._sent < len(self._pieces) and self._began + self._step * self._sent <= now:
            due.append(self._pieces[self._sent])
            self._sent += 1
        return _merge(due)

    def flush(self) -> list[Piece]:
        """Remove and return everything that is left, due or not."""
        left = self._due + self._pieces[self._sent :]
        self.discard()
        return _merge(left)

    def discard(self) -> None:
        """Drop what is left: the stream ends in an error, or the final reply brings it as its rest."""
        self._due, self._pieces, self._sent = [], [], 0

    def _learn(self, now: float) -> None:
        if self._last_arrival is None:
            self._last_arrival = now
            return
        gap = now - self._last_arrival
        if gap < _BURST_SECONDS:
            return
        self._last_arrival = now
        self._interval += _LEARNING * (min(gap, MAX_INTERVAL_SECONDS) - self._interval)

    def _split(self, post: Piece, count: int) -> list[Piece]:
        """Split a post into at most ``count`` pieces, one more when it has both reasoning and text."""
        length = len(post.reasoning) + len(post.text)
        for_reasoning = -(-count * len(post.reasoning) // length) if length else 0
        reasoning = split_text(post.reasoning, for_reasoning, before=self._before_reasoning)
        text = split_text(post.text, count - for_reasoning, before=self._before_text)
        if reasoning:
            self._before_reasoning = _last_cluster(self._before_reasoning, reasoning)
        if text:
            self._before_text = _last_cluster(self._before_text, text)
        return [*(Piece(reasoning=part) for part in reasoning), *(Piece(text=part) for part in text)]


def _merge(pieces: list[Piece]) -> list[Piece]:
    """Join pieces as far as sending reasoning before text keeps their order."""
    if len(pieces) < 2:  # noqa: PLR2004 - nothing to join
        return pieces
    merged: list[Piece] = []
    reasoning: list[str] = []
    text: list[str] = []
    for piece in pieces:
        if piece.reasoning and text:
            merged.append(Piece("".join(reasoning), "".join(text)))
            reasoning, text = [], []
        if piece.reasoning:
            reasoning.append(piece.reasoning)
        if piece.text:
            text.append(piece.text)
    if reasoning or text:
        merged.append(Piece("".join(reasoning), "".join(text)))
    return merged
