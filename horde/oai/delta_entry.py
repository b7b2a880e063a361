"""One entry of a request's delta stream, and how it is read from what the Horde wrote.

Pure: the relay and the pacing know entries without knowing Redis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DeltaEntry", "parse_delta_entry"]

_MAX_ID_LENGTH = 128
"""Longest ``gen`` and ``worker`` in bytes; the Horde writes UUIDs."""

_MAX_NAME_LENGTH = 1024
"""Longest ``model`` and ``ended`` in bytes."""

_MAX_SEQ_DIGITS = 9
"""A stream holds at most 4,096 entries; a longer number is not a sequence."""


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """What a worker posted once, or the end of its attempt.

    Attributes:
        entry_id: Id of the entry in the stream, ``<milliseconds>-<number>``.
        gen: Job id of the attempt that the entry belongs to.
        seq: Number of the post within its attempt, from 1; 0 for an ended marker.
        text: Content of the post, possibly empty.
        reasoning: Reasoning of the post, possibly empty.
        worker: Id of the worker, when the entry tells.
        model: Model that generates, when the entry tells.
        ended: Why the attempt ended, for an ended marker only.
    """

    entry_id: str
    gen: str
    seq: int = 0
    text: str = ""
    reasoning: str = ""
    worker: str | None = None
    model: str | None = None
    ended: str | None = None

    @property
    def is_marker(self) -> bool:
        """Whether this entry says that its attempt ended."""
        return self.ended is not None


def parse_delta_entry(entry_id: bytes, fields: Sequence[bytes]) -> DeltaEntry | None:
    """Read an entry, trusting nothing in it.

    An entry without ``worker`` or ``model`` is whole (DLT-21, DLT-22); a post with text alone or reasoning alone too.

    Args:
        entry_id: Id of the entry.
        fields: Names and values in turn, as the server sends them.

    Returns:
        The entry; None when a field is missing or malformed. Ignoring it is safe: what follows has a gap.
    """
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        gen = _short(values.get(b"gen"), _MAX_ID_LENGTH)
        ended = _short(values.get(b"ended"), _MAX_NAME_LENGTH)
        worker = _short(values.get(b"worker"), _MAX_ID_LENGTH)
        model = _short(values.get(b"model"), _MAX_NAME_LENGTH)
        text = values.get(b"text", b"").decode()
        reasoning = values.get(b"reasoning", b"").decode()
        name = entry_id.decode("ascii")
    except ValueError:  # not UTF-8, or too long
        return None
    if gen is None:
        return None
    if ended is not None:
        return DeltaEntry(name, gen, ended=ended)
    seq = _sequence(values.get(b"seq", b""))
    has_content = b"text" in values or b"reasoning" in values
    if seq is None or not has_content:
        return None
    return DeltaEntry(name, gen, seq, text, reasoning, worker, model)


def _short(value: bytes | None, limit: int) -> str | None:
    """Decode a short text; empty counts as absent.

    Raises:
        ValueError: It is longer than the limit or no UTF-8.
    """
    if not value:
        return None
    if len(value) > limit:
        raise ValueError("a field is too long")
    return value.decode()


def _sequence(value: bytes) -> int | None:
    if not value.isdigit() or len(value) > _MAX_SEQ_DIGITS:
        return None
    return int(value) or None
