import pytest
from horde_sdk.worker.chat_declaration import ChatFaultReason, ChatUsage

from horde.worker.activity import WorkerActivity
from horde.worker.metrics import JobOutcome
from tests.support.clock import FakeClock


def test_a_job_is_listed_while_it_runs_and_counted_when_it_ends() -> None:
    clock = FakeClock()
    worker = WorkerActivity("big", clock=clock)
    job = worker.job_started("job-1")
    clock.advance(2)
    job.text_came()
    job.text_came()
    assert (worker.running_count, job.seconds, job.pieces, worker.pieces) == (1, 2, 2, 2)
    job.reply_taken(ChatUsage(prompt_tokens=3, completion_tokens=5), 1.5)
    job.ended(JobOutcome.TAKEN)
    assert (worker.running_count, worker.reply_tokens, worker.kudos) == (0, 5, 1.5)
    assert worker.ended == {JobOutcome.TAKEN: 1}


def test_what_a_model_server_did_not_count_is_none() -> None:
    worker = WorkerActivity()
    job = worker.job_started("job-1")
    job.reply_taken(ChatUsage(), 0.0)
    job.ended(JobOutcome.FAULTED, ChatFaultReason.GENERATION_ERROR)
    assert (worker.label, worker.reply_tokens) == ("worker", 0)


@pytest.mark.parametrize(("outcome", "away"), [("job", False), ("empty", False), ("refused", True), ("away", True)])
def test_a_horde_without_answers_is_away(outcome: str, *, away: bool) -> None:
    worker = WorkerActivity()
    worker.popped(outcome)  # type: ignore[arg-type]  # a parameter of a test is a plain text
    assert worker.horde_away is away
