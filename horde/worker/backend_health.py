"""What a worker's jobs tell of its model server: whether to take more jobs, and how soon to try it again."""

from collections.abc import Callable
from typing import Final

from horde_sdk.worker.chat_declaration import ChatFaultReason

from horde.worker.backends.base import BackendError, BackendUnavailableError
from horde.worker.backoff import Backoff

__all__ = ["BackendHealth"]

_MAX_FAILURES: Final = 3
"""Replies that fail one after the other before the server counts as down, whatever it says of itself."""

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0


class BackendHealth:
    """Counts what fails in a row.

    A server that answers its probes and fails every job would take one job after the other from the Horde and fault
    them all. Three in a row, or one that could not be served at all, and the worker withdraws; each time that this
    happens without a reply in between, it stays away for longer.

    Args:
        on_down: Called when the server counts as down.
        backoff: The pauses; for tests.
    """

    def __init__(self, on_down: Callable[[], None], *, backoff: Backoff | None = None) -> None:
        self._on_down = on_down
        self._backoff = backoff or Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._failures = 0
        self._outages = 0
        self._is_down = False
        self._says_so = True

    @property
    def is_down(self) -> bool:
        """Whether no more jobs should be taken."""
        return self._is_down

    def note_reply(self) -> None:
        """Note that the server made a whole reply."""
        self._failures = 0
        self._outages = 0
        self._backoff.reset()

    def note_failure(self, error: BackendError) -> None:
        """Note why the server made none; a request that it rightly refuses says nothing against it."""
        if error.fault_reason is not ChatFaultReason.GENERATION_ERROR:
            return
        self._failures += 1
        if not self._is_down and (isinstance(error, BackendUnavailableError) or self._failures >= _MAX_FAILURES):
            self._is_down = True
            self._outages += 1
            self._says_so = isinstance(error, BackendUnavailableError)
            self._on_down()

    def note_back(self) -> None:
        """Note that the server answers its probes again; it stays suspect until it made a reply."""
        self._is_down = False
        self._failures = _MAX_FAILURES - 1

    def pause_before_probe(self) -> float:
        """Return the seconds to wait before a probe is believed.

        None for the first outage since a reply, when the server itself said that it cannot work.
        """
        return 0.0 if self._outages == 1 and self._says_so else self._backoff.next_delay()
