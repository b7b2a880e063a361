from horde.native.lifecycle import (
    ENDED_REASONS,
    FINAL_SIGNALS,
    OPEN_STATES,
    REQUEST_TRANSITIONS,
    JobState,
    RequestState,
)


def test_an_open_request_can_end_and_an_ended_one_stays() -> None:
    for state in RequestState:
        assert bool(REQUEST_TRANSITIONS[state]) == (state in OPEN_STATES)


def test_every_way_an_attempt_ends_without_a_reply_has_a_marker() -> None:
    assert set(ENDED_REASONS) == set(JobState) - {JobState.PROCESSING, JobState.REPLIED}


def test_every_state_a_request_can_reach_but_processing_has_a_signal() -> None:
    assert set(FINAL_SIGNALS) == set(RequestState) - {RequestState.PROCESSING}
