"""Several workers in one process: each serves, rests and fails by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from horde.worker.activity import WorkerActivity
from horde.worker.backoff import Backoff
from horde.worker.configuration import ConfiguredWorker
from horde.worker.daemon import WorkerDaemon, WorkerStartError
from horde.worker.fleet import WorkerFleet
from horde.worker.settings import WorkerSettings
from tests.support.clock import FakeWallClock
from tests.support.scripted_model import Finish, Say, ScriptedModel, Stall, tokens
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served, serving
from tests.support.waiting import WaitUntil

MODEL = "scripted-1B"
NOWHERE = "http://127.0.0.1:9/v1"

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


def configured(label: str, horde_url: str, backend_url: str, **settings: object) -> ConfiguredWorker:
    given = {"horde_url": horde_url, "backend_url": backend_url, "api_key": "k", "backend_start_seconds": 0}
    settings = {**given, "drain_seconds": 0, **settings}
    return ConfiguredWorker(label=label, settings=WorkerSettings.model_validate(settings))


class Broken(WorkerDaemon):
    """A worker with a fault of its own."""

    async def run(self) -> None:
        raise ZeroDivisionError


@contextlib.asynccontextmanager
async def fleet_of(
    workers: Sequence[ConfiguredWorker],
    *,
    broken: str | None = None,
    clock: FakeWallClock | None = None,
    pause_seconds: float = 60.0,
) -> AsyncIterator[WorkerFleet]:
    def make_daemon(worker: ConfiguredWorker, activity: WorkerActivity) -> WorkerDaemon:
        kind = Broken if worker.label == broken else WorkerDaemon
        return kind(worker.settings, label=worker.label, clock=clock, activity=activity)

    fleet = WorkerFleet(workers, make_daemon=make_daemon, make_backoff=lambda: Backoff(pause_seconds, pause_seconds))
    running = asyncio.create_task(fleet.run(), name="test - fleet")
    try:
        yield fleet
    finally:
        fleet.stop()
        async with asyncio.timeout(10):
            await running


@pytest.mark.parametrize("trouble", ["unreachable", "broken", "unknown model"])
async def test_one_worker_that_fails_costs_no_other_one(
    horde: Horde, model: Model, wait_until: WaitUntil, trouble: str
) -> None:
    model.server.play(tokens("The sea"))
    popped = chat_job(model=MODEL)
    horde.server.give(popped)
    bad = configured(
        "bad",
        horde.url,
        NOWHERE if trouble == "unreachable" else model.url,
        model="unlisted" if trouble == "unknown model" else None,
    )
    good = configured("good", horde.url, model.url)
    async with fleet_of([bad, good], broken="bad" if trouble == "broken" else None):
        await wait_until(lambda: horde.server.submit_of(popped["id"]), description="the reply")


async def test_a_program_without_a_worker_that_can_serve_ends() -> None:
    workers = [configured("a", NOWHERE, NOWHERE), configured("b", NOWHERE, NOWHERE)]
    with pytest.raises(WorkerStartError, match="None of 2 workers can serve"):
        await WorkerFleet(workers).run()


async def test_a_worker_that_could_not_start_is_tried_again_while_another_one_serves(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    late = ScriptedModel(model="late-1B")
    late.available = False
    async with serving(late) as late_url:
        workers = [configured("good", horde.url, model.url), configured("late", horde.url, f"{late_url}/v1")]
        async with fleet_of(workers, pause_seconds=0.02):
            await wait_until(lambda: late.listed >= 2, description="a second start")
            late.available = True
            await wait_until(
                lambda: {pop["models"][0] for pop in horde.server.pops} == {MODEL, "late-1B"},
                description="pops of both workers",
            )
    assert len({pop["name"] for pop in horde.server.pops}) == 2


async def test_a_horde_that_refuses_one_worker_keeps_the_other(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    refusing = ScriptedPops()
    refusing.pop_refusals.append((401, {"message": "No.", "rc": "InvalidAPIKey"}))
    model.server.play(tokens("The sea"))
    async with serving(refusing) as refusing_url:
        workers = [configured("refused", refusing_url, model.url), configured("good", horde.url, model.url)]
        async with fleet_of(workers):
            await wait_until(lambda: len(refusing.pops) == 2, description="the refused worker to withdraw")
            popped = chat_job(model=MODEL)
            horde.server.give(popped)
            await wait_until(lambda: horde.server.submit_of(popped["id"]), description="the reply")


async def test_out_of_hours_nothing_is_asked_for_and_at_their_end_running_jobs_finish(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()])
    first, second = chat_job(model=MODEL), chat_job(model=MODEL)
    horde.server.give(first)
    clock = FakeWallClock("2026-12-07 21:00")
    worker = configured("night", horde.url, model.url, schedule=["22:00-07:00"], time_zone="Europe/Berlin")
    async with fleet_of([worker], clock=clock):
        clock.set("2026-12-07 21:59")
        assert (model.server.listed, horde.server.pops) == (0, [])
        clock.set("2026-12-07 22:00")
        await wait_until(lambda: model.server.open_streams, description="the job")
        clock.set("2026-12-08 07:00")
        await wait_until(lambda: not horde.server.pops[-1]["chat_jobs"], description="the worker to withdraw")
        assert horde.server.pops[-1]["running"] == [first["id"]]
        listed = model.server.listed
        horde.server.give(second)
        go_on.set()
        await wait_until(lambda: horde.server.submit_of(first["id"]), description="the reply")
        assert horde.server.submits[0]["message"]["content"] == "The sea"
        assert not horde.server.pops[-1]["chat_jobs"]
        clock.set("2026-12-08 22:00")
        await wait_until(lambda: horde.server.submit_of(second["id"]), description="the second reply")
    assert model.server.listed > listed, "the model server is looked at again before its hours"


async def test_a_worker_that_rests_is_stopped_at_once(horde: Horde, model: Model) -> None:
    worker = configured("night", horde.url, model.url, schedule=["22:00-07:00"], time_zone="Europe/Berlin")
    async with fleet_of([worker], clock=FakeWallClock("2026-12-07 21:00")):
        pass
    assert (model.server.listed, horde.server.pops) == (0, [])
