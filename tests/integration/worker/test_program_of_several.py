"""One program with several workers, configured by a file: what it says, and how it stops."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.programs import ended, program
from tests.support.scripted_model import Finish, Say, ScriptedModel, Stall
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served, serving
from tests.support.waiting import WaitUntil

MODEL = "scripted-1B"
NOWHERE = "http://127.0.0.1:9/v1"
_START_SECONDS = 30.0

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


@asynccontextmanager
async def second_horde() -> AsyncIterator[Horde]:
    pops = ScriptedPops()
    async with serving(pops) as url:
        yield Served(pops, url)


def configuration(folder: Path, text: str) -> str:
    path = folder / "worker.toml"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def two_workers(folder: Path, hordes: tuple[Horde, Horde], model: Model, *, drain_seconds: float) -> str:
    tables = [
        f'[workers.{label}]\nhorde_url = "{horde.url}"\nbackend_url = "{model.url}"\nthreads = 2\n'
        f"drain_seconds = {seconds}\n"
        for label, horde, seconds in zip(("first", "second"), hordes, (drain_seconds, 600), strict=True)
    ]
    return configuration(folder, "\n".join(['api_key = "secret-key"\n', *tables]))


async def wait_for_jobs_and_stop(
    process: asyncio.subprocess.Process, hordes: tuple[Horde, Horde], model: Model, wait_until: WaitUntil
) -> None:
    """Wait until each worker serves a job, stop the program, and wait until both withdrew."""
    await wait_until(lambda: model.server.open_streams == 2, description="two jobs", seconds=_START_SECONDS)
    process.send_signal(signal.SIGTERM)
    await wait_until(
        lambda: all(horde.server.pops[-1]["chat_jobs"] is False for horde in hordes),
        description="both workers to withdraw",
    )


async def test_a_signal_lets_every_worker_finish_within_its_time_and_faults_what_does_not(
    horde: Horde, model: Model, wait_until: WaitUntil, tmp_path: Path
) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()])
    async with second_horde() as other:
        hordes = (horde, other)
        path = two_workers(tmp_path, hordes, model, drain_seconds=0)
        for each in hordes:
            each.server.give(chat_job(model=MODEL))
        async with program("horde.worker", "--config", path, "--log-level", "TRACE") as process:
            await wait_for_jobs_and_stop(process, hordes, model, wait_until)
            await wait_until(lambda: horde.server.submits, description="the fault of the worker without time")
            assert other.server.submits == []
            go_on.set()
            code, output = await ended(process)
    assert code == 0
    assert [submit.get("fault_reason") for submit in horde.server.submits] == ["generation_error"]
    assert [submit["message"]["content"] for submit in other.server.submits] == ["The sea"]
    assert "secret-key" not in output
    assert {'"worker":"first"', '"worker":"second"'} <= set(output.replace("}", ",").split(","))


async def test_a_second_signal_ends_all_workers_at_once(
    horde: Horde, model: Model, wait_until: WaitUntil, tmp_path: Path
) -> None:
    model.server.play([Say("The"), Stall(asyncio.Event())])
    async with second_horde() as other:
        hordes = (horde, other)
        path = two_workers(tmp_path, hordes, model, drain_seconds=600)
        for each in hordes:
            each.server.give(chat_job(model=MODEL))
        async with program("horde.worker", "--config", path) as process:
            await wait_for_jobs_and_stop(process, hordes, model, wait_until)
            process.send_signal(signal.SIGTERM)
            assert (await ended(process))[0] == 1
    await wait_until(lambda: model.server.open_streams == 0, description="the streams to be closed")
    assert horde.server.submits == other.server.submits == []


async def test_when_no_worker_can_serve_it_is_exit_code_3(tmp_path: Path) -> None:
    tables = "".join(f'[workers.{label}]\nbackend_url = "{NOWHERE}"\n' for label in ("a", "b"))
    path = configuration(tmp_path, f'api_key = "k"\nbackend_start_seconds = 0\n{tables}')
    async with program("horde.worker", "--config", path) as process:
        code, output = await ended(process)
    assert code == 3
    assert "None of 2 workers can serve" in output


async def test_a_configuration_is_checked_without_looking_at_a_model_server(tmp_path: Path, model: Model) -> None:
    path = configuration(tmp_path, f'api_key = "k"\n[workers.a]\nbackend_url = "{model.url}"\n')
    async with program("horde.worker", "--config", path, "--check-config") as process:
        code, output = await ended(process)
    assert (code, model.server.listed) == (0, 0)
    assert output.startswith(f"{path}: 1 worker, no problem\n\na\n  serves   the first model of {model.url}\n")


async def test_a_check_that_probes_says_what_would_be_declared_and_what_cannot(tmp_path: Path, model: Model) -> None:
    tables = f'[workers.a]\nbackend_url = "{model.url}"\n[workers.b]\nbackend_url = "{NOWHERE}"\n'
    path = configuration(tmp_path, f'api_key = "k"\n{tables}')
    async with program("horde.worker", "--config", path, "--check-config", "--probe") as process:
        code, output = await ended(process)
    assert code == 3
    assert f"declares {MODEL}, 1 threads, prompts up to" in output
    assert f"The model server at {NOWHERE} cannot be reached" in output


async def test_a_wrong_configuration_is_exit_code_2_and_every_problem_a_line(tmp_path: Path) -> None:
    path = configuration(tmp_path, 'api_key = "secret-key"\ntreads = 1\n[workers.a]\nthreads = 0\n')
    async with program("horde.worker", "--config", path) as process:
        assert await ended(process) == (
            2,
            (
                f"{path}: treads is no setting; did you mean threads?\n"
                f"{path}: [workers.a] threads is wrong: Input should be greater than or equal to 1.\n"
            ),
        )
