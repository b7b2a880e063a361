import io

import pytest
from rich.console import Console

from horde.worker.activity import WorkerActivity
from horde.worker.metrics import JobOutcome, WorkerState
from horde.worker.terminal import LogLines
from horde.worker.view import TokenRates, render
from tests.support.clock import FakeClock


def shown(*activities: WorkerActivity) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(activities, {worker.label: 2.5 for worker in activities}))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_each_worker_is_a_line_and_each_running_job_below() -> None:
    worker = WorkerActivity("big", clock=FakeClock())
    worker.state, worker.model, worker.threads = WorkerState.SERVING, "model[red]-1B", 4
    worker.job_started("0123456789").text_came()
    worker.ended[JobOutcome.TAKEN] = 7
    assert [line.split() for line in shown(worker)] == [
        ["worker", "model", "state", "jobs", "tokens/s", "served", "faulted", "tokens", "kudos"],
        ["big", "model[red]-1B", "serving", "1/4", "2.5", "7", "0", "0", "0.0"],
        ["big", "01234567", "0.0", "s", "1", "tokens"],
    ]


def test_of_many_jobs_those_are_shown_that_run_longest() -> None:
    clock = FakeClock()
    worker = WorkerActivity("big", clock=clock)
    for number in range(10):
        worker.job_started(f"job-{number}")
        clock.advance(1)
    assert [line.split()[1] for line in shown(worker)[2:]] == [*(f"job-{number}" for number in range(8)), "2"]


def test_what_went_wrong_is_said_until_it_goes_well() -> None:
    worker = WorkerActivity("big")
    worker.state = WorkerState.SERVING
    worker.popped("away")
    worker.trouble = "The Horde gives no jobs."
    assert "Horde away" in shown(worker)[1]
    assert shown(worker)[-1] == "  big: The Horde gives no jobs."
    worker.popped("empty")
    assert len(shown(worker)) == 2


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = FakeClock()
    worker, rates = WorkerActivity("big"), TokenRates(clock)
    assert rates.read([worker]) == {"big": 0.0}
    for _ in range(20):
        clock.advance(1)
        worker.pieces += 10
        rate = rates.read([worker])["big"]
        assert rate == pytest.approx(10)
    clock.advance(10)
    assert rates.read([worker])["big"] == 0


def test_of_a_log_that_nobody_draws_the_newest_lines_are_kept() -> None:
    lines = LogLines()
    for number in range(1003):
        lines.write(f"{number}\n")
    text = lines.take().splitlines()
    assert (text[0], text[1], text[-1]) == ("(3 lines of the log were left out)", "3", "1002")
    assert lines.take() == ""


def test_after_the_view_the_log_goes_on_elsewhere_with_what_waited() -> None:
    lines, stream = LogLines(), io.StringIO()
    lines.write("first\n")
    lines.end(stream)
    lines.write("second\n")
    assert stream.getvalue() == "first\nsecond\n"
    lines.end(None)
    lines.write("third\n")
    assert stream.getvalue() == "first\nsecond\n"
