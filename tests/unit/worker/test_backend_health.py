"""When a model server counts as down, and how long it is left alone."""

import pytest

from horde.worker.backend_health import BackendHealth
from horde.worker.backends.base import (
    BackendError,
    BackendUnavailableError,
    PromptOverflowError,
    UnbuildableGrammarError,
)
from horde.worker.backoff import Backoff


def health(downs: list[str]) -> BackendHealth:
    return BackendHealth(lambda: downs.append("down"), backoff=Backoff(1, 8, random_unit=lambda: 1.0))


def test_three_failures_in_a_row_are_an_outage_and_a_reply_between_them_is_not() -> None:
    downs: list[str] = []
    checked = health(downs)
    for _ in range(2):
        checked.note_failure(BackendError("x"))
        checked.note_failure(BackendError("x"))
        checked.note_reply()
    assert downs == []
    for _ in range(3):
        checked.note_failure(BackendError("x"))
    assert downs == ["down"]
    assert checked.pause_before_probe() == 1


def test_a_server_that_is_back_needs_only_one_failure_until_it_made_a_reply() -> None:
    checked = health([])
    checked.note_failure(BackendUnavailableError("x"))
    checked.note_back()
    checked.note_failure(BackendError("x"))
    assert checked.is_down


@pytest.mark.parametrize("error", [PromptOverflowError, UnbuildableGrammarError])
def test_a_refused_request_says_nothing_against_the_server(error: type[BackendError]) -> None:
    checked = health([])
    for _ in range(9):
        checked.note_failure(error("x"))
    assert not checked.is_down


def test_outages_without_a_reply_between_them_are_waited_out_for_longer_and_longer() -> None:
    checked = health([])
    pauses = []
    for _ in range(6):
        checked.note_failure(BackendUnavailableError("x"))
        pauses.append(checked.pause_before_probe())
        checked.note_back()
    assert pauses == [0, 1, 2, 4, 8, 8]
    checked.note_reply()
    checked.note_failure(BackendUnavailableError("x"))
    assert checked.pause_before_probe() == 0
