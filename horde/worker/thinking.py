"""Splits ``<think>`` blocks off a reply while it streams (WRK-3, RSN-1). Pure.

A reasoning model opens its reply with one block. Only a block at the very start counts: a reply may speak about the
tag, and text that was already passed on as content cannot be taken back.
"""

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["ThinkPiece", "ThinkSplitter"]

_OPEN_TAG = "<think>"
_CLOSE_TAG = "</think>"


class _Phase(Enum):
    UNDECIDED = auto()
    REASONING = auto()
    AFTER_BLOCK = auto()
    CONTENT = auto()


@dataclass(frozen=True, slots=True)
class ThinkPiece:
    """A part of a reply; at most one of the two is empty.

    Attributes:
        reasoning: Text of the block, without its tags and the white space beside them.
        content: Text of the answer.
    """

    reasoning: str = ""
    content: str = ""


def _held_back(text: str, tag: str) -> int:
    """Return how many characters at the end of a text could be the start of a tag."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


class ThinkSplitter:
    """Splits a reply that arrives in pieces cut anywhere.

    What it returns, joined, does not depend on where the pieces were cut. Text is held back only as long as it could
    be part of a tag, or white space that belongs to none of the two sides.

    Args:
        starts_inside: The block's start is part of the prompt, so that the reply begins inside it.
    """

    def __init__(self, *, starts_inside: bool = False) -> None:
        self._phase = _Phase.REASONING if starts_inside else _Phase.UNDECIDED
        self._held = ""
        self._reasoned = False

    def feed(self, text: str) -> ThinkPiece:
        """Take the next piece and return what is certain by now."""
        self._held += text
        if self._phase is _Phase.UNDECIDED and not self._decide():
            return ThinkPiece()
        reasoning = self._take_reasoning() if self._phase is _Phase.REASONING else ""
        return ThinkPiece(reasoning, self._take_content())

    def finish(self) -> ThinkPiece:
        """End the reply and return what was held back; a block that was never closed is reasoning to its end."""
        held, self._held = self._held, ""
        if self._phase is _Phase.REASONING:
            return ThinkPiece(reasoning=held.rstrip() if self._reasoned else held.strip())
        if self._phase is _Phase.AFTER_BLOCK:
            return ThinkPiece()
        return ThinkPiece(content=held)

    def _decide(self) -> bool:
        """Find out whether the reply starts with a block; False while that is open."""
        start = self._held.lstrip()
        if start.startswith(_OPEN_TAG):
            self._held = start.removeprefix(_OPEN_TAG)
            self._phase = _Phase.REASONING
        elif not _OPEN_TAG.startswith(start):
            self._phase = _Phase.CONTENT
        return self._phase is not _Phase.UNDECIDED

    def _take_reasoning(self) -> str:
        text, tag, rest = self._held.partition(_CLOSE_TAG)
        if not self._reasoned:
            text = text.lstrip()
        if tag:
            self._held = rest
            self._phase = _Phase.AFTER_BLOCK
            return text.rstrip()
        certain = text[: len(text) - _held_back(text, _CLOSE_TAG)].rstrip()
        self._held = text[len(certain) :]
        self._reasoned = self._reasoned or bool(certain)
        return certain

    def _take_content(self) -> str:
        if self._phase is _Phase.AFTER_BLOCK:
            self._held = self._held.lstrip()
            if self._held:
                self._phase = _Phase.CONTENT
        if self._phase is not _Phase.CONTENT:
            return ""
        content, self._held = self._held, ""
        return content
