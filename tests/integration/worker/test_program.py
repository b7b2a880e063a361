"""The worker and the model server as programs: exit codes, signals, what they say."""

import asyncio
import ctypes
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.programs import ended, program
from tests.support.scripted_model import Finish, Say, ScriptedModel, Stall
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil

NOWHERE = "http://127.0.0.1:9/v1"
_EXIT_SECONDS = 60.0

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


def worker(horde: str, model: str, **variables: str) -> dict[str, str]:
    return {
        "HORDE_WORKER_HORDE_URL": horde,
        "HORDE_WORKER_BACKEND_URL": model,
        "HORDE_WORKER_API_KEY": "secret-worker-key",
        **variables,
    }


async def test_wrong_settings_are_one_sentence_and_exit_code_2() -> None:
    async with program("horde.worker", HORDE_WORKER_TREADS="1", HORDE_WORKER_API_KEY="k") as process:
        assert await ended(process) == (
            2,
            "HORDE_WORKER_TREADS is no setting of the worker; did you mean HORDE_WORKER_THREADS?\n",
        )


async def test_a_model_server_that_is_not_there_is_exit_code_3() -> None:
    variables = worker(NOWHERE, NOWHERE, HORDE_WORKER_BACKEND_START_SECONDS="0")
    async with program("horde.worker", **variables) as process:
        code, output = await ended(process)
    assert code == 3
    assert NOWHERE in output


async def test_options_of_the_command_line_need_no_environment(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    arguments = ["--horde", horde.url, "--key", "k", "--backend", model.url, "--name", "mine"]
    async with program("horde.worker", *arguments) as process:
        await wait_until(lambda: horde.server.pops, description="a pop", seconds=_EXIT_SECONDS)
        assert horde.server.pops[0]["name"] == "mine"
        process.send_signal(signal.SIGINT)
        assert (await ended(process))[0] == 0


async def test_the_first_signal_lets_jobs_finish_and_no_key_is_ever_logged(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Say(" sea"), Finish()])
    horde.server.give(chat_job(model="scripted-1B"))
    async with program("horde.worker", **worker(horde.url, model.url, HORDE_WORKER_LOG_LEVEL="TRACE")) as process:
        await wait_until(lambda: model.server.open_streams, description="a job", seconds=_EXIT_SECONDS)
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: horde.server.pops[-1]["chat_jobs"] is False, description="the worker to withdraw")
        go_on.set()
        code, output = await ended(process)
    assert code == 0
    assert [submit["message"]["content"] for submit in horde.server.submits] == ["The sea"]
    assert "secret-worker-key" not in output


async def test_the_second_signal_leaves_at_once(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    model.server.play([Say("The"), Stall(asyncio.Event())])
    horde.server.give(chat_job(model="scripted-1B"))
    async with program("horde.worker", **worker(horde.url, model.url, HORDE_WORKER_DRAIN_SECONDS="600")) as process:
        await wait_until(lambda: model.server.open_streams, description="a job", seconds=_EXIT_SECONDS)
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: horde.server.pops[-1]["chat_jobs"] is False, description="the worker to withdraw")
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[0] == 1
    await wait_until(lambda: model.server.open_streams == 0, description="the stream to be closed")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda folder: ["--model", str(folder / "none.gguf")], "There is no model file"),
        (lambda folder: ["--model", str(folder / "junk.gguf")], "cannot be loaded"),
    ],
    ids=["missing", "damaged"],
)
async def test_a_model_that_cannot_be_served_is_a_sentence_and_exit_code_3(
    tmp_path: Path, arguments: Callable[[Path], list[str]], sentence: str
) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"junk")
    async with program("horde.local.model_server", *arguments(tmp_path)) as process:
        code, output = await ended(process)
    assert code == 3
    assert sentence in output  # llama.cpp may say something after it


async def test_a_port_in_use_is_said_before_the_model_is_loaded(horde: Horde) -> None:
    port = horde.url.rpartition(":")[2]
    async with program("horde.local.model_server", "--port", port) as process:
        code, output = await ended(process)
    assert code == 3
    assert f"port {port}" in output


@asynccontextmanager
async def model_server() -> AsyncIterator[asyncio.subprocess.Process]:
    async with program("horde.local.model_server", "--slots=1", "--context=512") as process:
        assert process.stdout is not None
        async with asyncio.timeout(_EXIT_SECONDS):
            assert (await process.stdout.readline()).startswith(b"http://127.0.0.1:")
        yield process


async def test_the_model_server_prints_its_address_and_stops_on_a_signal() -> None:
    async with model_server() as process:
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == (0, "")


def threads_of(process: asyncio.subprocess.Process) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/task").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a thread by its number")
async def test_the_model_server_stops_whichever_of_its_threads_gets_the_signal() -> None:
    async with model_server() as process:
        newest_thread = max(int(folder.name) for folder in threads_of(process))
        assert newest_thread != process.pid
        assert ctypes.CDLL(None).tgkill(process.pid, newest_thread, signal.SIGTERM) == 0
        assert await ended(process) == (0, "")
