"""States of a request and of a job, and the transitions between them; pure.

    request:  waiting ⇄ processing → replied
              waiting, processing → faulted, cancelled, expired
    job:      processing → replied, faulted, refused, lease_expired, cancelled, expired, released

A job is one attempt: the pop makes it and it ends once. The words are those of the tables.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from horde.chat_contract import EndedReason, SignalEvent

__all__ = [
    "ENDED_REASONS",
    "FINAL_SIGNALS",
    "MAX_ATTEMPTS",
    "OPEN_STATES",
    "REQUEST_TRANSITIONS",
    "SUBMITTED_STATES",
    "JobState",
    "RequestState",
]

MAX_ATTEMPTS: Final = 3
"""How many workers try a request before it faults."""


class RequestState(StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PROCESSING = "processing"
    REPLIED = "replied"
    FAULTED = "faulted"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class JobState(StrEnum):
    """Where an attempt is, and how it ended."""

    PROCESSING = "processing"
    REPLIED = "replied"
    FAULTED = "faulted"
    REFUSED = "refused"
    LEASE_EXPIRED = "lease_expired"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    RELEASED = "released"


OPEN_STATES: Final = frozenset({RequestState.WAITING, RequestState.PROCESSING})
"""A request in one of these will still change."""

REQUEST_TRANSITIONS: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    RequestState.WAITING: frozenset(
        {RequestState.PROCESSING, RequestState.CANCELLED, RequestState.EXPIRED, RequestState.FAULTED},
    ),
    RequestState.PROCESSING: frozenset(
        {
            RequestState.WAITING,
            RequestState.REPLIED,
            RequestState.FAULTED,
            RequestState.CANCELLED,
            RequestState.EXPIRED,
        },
    ),
    RequestState.REPLIED: frozenset(),
    RequestState.FAULTED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.EXPIRED: frozenset(),
}
"""Which state may follow which; a final state is followed by none."""

SUBMITTED_STATES: Final = frozenset({JobState.REPLIED, JobState.FAULTED, JobState.REFUSED})
"""A job in one of these was submitted by its worker: a second submit of it is a duplicate."""

ENDED_REASONS: Final[Mapping[JobState, EndedReason]] = {
    JobState.FAULTED: EndedReason.FAULTED,
    JobState.REFUSED: EndedReason.REFUSED,
    JobState.LEASE_EXPIRED: EndedReason.LEASE_EXPIRED,
    JobState.CANCELLED: EndedReason.CANCELLED,
    JobState.EXPIRED: EndedReason.EXPIRED,
    JobState.RELEASED: EndedReason.LEASE_EXPIRED,
}
"""What the ended marker of an attempt says; an attempt that became the reply has none."""

FINAL_SIGNALS: Final[Mapping[RequestState, SignalEvent]] = {
    RequestState.REPLIED: SignalEvent.FINISHED,
    RequestState.FAULTED: SignalEvent.FAULTED,
    RequestState.EXPIRED: SignalEvent.FAULTED,
    RequestState.CANCELLED: SignalEvent.CANCELLED,
    RequestState.WAITING: SignalEvent.REQUEUED,
}
"""The signal that tells of a request's new state."""
