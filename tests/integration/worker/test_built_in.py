"""The built-in backend: a model server that the worker starts, keeps and takes with it, whichever way it goes."""

import signal
from pathlib import Path

import psutil
import pytest

from horde.worker.built_in import model_path_of
from horde.worker.daemon import WorkerStartError
from tests.support.programs import ended, program
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil
from tests.support.working import make_worker, working

type Horde = Served[ScriptedPops]

SERVER = "horde.local.model_server"
START_SECONDS = 60.0


def is_built_in(process: psutil.Process) -> bool:
    """Whether a process is a built-in model server: the tests have one of another kind."""
    try:
        return {SERVER, "--until-input-ends"} <= set(process.cmdline())
    except psutil.Error:
        return False


def model_servers(pid: int | None = None) -> list[psutil.Process]:
    """Return the built-in model servers that a process, by default this one, started."""
    return [child for child in psutil.Process(pid).children() if is_built_in(child)]


async def test_a_worker_serves_the_bundled_model_with_nothing_else_running(horde: Horde, wait_until: WaitUntil) -> None:
    job = chat_job(max_length=16)
    horde.server.give(job)
    async with working(horde.url, "llama_cpp", threads=1, context_length=1024):
        await wait_until(lambda: horde.server.submit_of(job["id"]), description="the reply", seconds=START_SECONDS)
        [server] = model_servers()
        assert {"--slots=1", "--context=1024"} <= set(server.cmdline())
    pop = horde.server.pops[0]
    assert pop["model_id"] == "SmolLM2-135M-Instruct"
    assert pop["chat_limits"] == {"max_context_length": 768, "max_length": 256}
    assert model_servers() == []


async def test_a_model_server_that_dies_is_started_again_where_it_was(horde: Horde, wait_until: WaitUntil) -> None:
    async with working(horde.url, "llama_cpp", context_length=512):
        await wait_until(lambda: horde.server.pops, description="a pop", seconds=START_SECONDS)
        [server] = model_servers()
        server.kill()
        await wait_until(
            lambda: [each for each in model_servers() if each.pid != server.pid],
            description="another model server",
            seconds=START_SECONDS,
        )
        horde.server.give(*(chat_job(max_length=16) for _ in range(3)))
        await wait_until(
            lambda: [each for each in horde.server.submits if "message" in each],
            description="a reply",
            seconds=START_SECONDS,
        )


async def test_a_worker_that_is_killed_leaves_no_model_server_behind(horde: Horde, wait_until: WaitUntil) -> None:
    arguments = ["--horde", horde.url, "--key", "k", "--backend", "llama_cpp"]
    async with program("horde.worker", *arguments) as process:
        await wait_until(lambda: horde.server.pops, description="a pop", seconds=START_SECONDS)
        [server] = model_servers(process.pid)
        process.send_signal(signal.SIGKILL)
        await ended(process)
    await wait_until(lambda: not server.is_running(), description="the model server to end", seconds=START_SECONDS)


async def test_a_file_that_is_no_model_is_a_start_that_fails(horde: Horde, tmp_path: Path) -> None:
    worker = make_worker(horde.url, f"llama_cpp:{tmp_path / 'none.gguf'}")
    with pytest.raises(WorkerStartError, match="did not start"):
        await worker.run()


async def test_a_worker_that_is_stopped_while_its_model_loads_ends(horde: Horde) -> None:
    worker = make_worker(horde.url, "llama_cpp")
    worker.stop()
    await worker.run()
    assert model_servers() == []
    assert horde.server.pops == []


@pytest.mark.parametrize(
    ("backend", "path"),
    [("llama_cpp", None), ("llama_cpp:", None), ("llama_cpp:/models/a.gguf", Path("/models/a.gguf"))],
)
def test_a_built_in_backend_names_its_file_behind_a_colon(backend: str, path: Path | None) -> None:
    assert model_path_of(backend) == path
