"""Starting and stopping a whole Horde: what a person at a terminal sees."""

import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.support.waiting import WaitUntil
from tests.support.whole_horde import WholeHorde, still_running


@contextlib.asynccontextmanager
async def horde_up(folder: Path, *options: str, state_dir: Path | None = None) -> AsyncIterator[WholeHorde]:
    horde = WholeHorde.start(folder, *options, state_dir=state_dir)
    try:
        yield horde
    finally:
        await horde.stop()


async def test_ctrl_c_stops_every_process_and_a_second_start_finds_the_same_key(
    tmp_path: Path,
    wait_until: WaitUntil,
) -> None:
    (tmp_path / "first").mkdir()
    async with horde_up(tmp_path / "first", "--no-sample", state_dir=tmp_path / "state") as first:
        await first.ready()
        key = first.printed("API key")
        started = first.descendants()
        assert await first.stop() == 0
    await wait_until(lambda: not still_running(started), description="every process to have ended")
    stopped = [line.split(" (")[0] for line in first.output.splitlines() if line.startswith("Stopped ")]
    parts = ("front", "worker", "native Horde", "model server", "Valkey", "PostgreSQL")
    assert stopped == [f"Stopped {part}" for part in parts]

    (tmp_path / "second").mkdir()
    async with horde_up(tmp_path / "second", state_dir=tmp_path / "state") as second:
        await second.ready()
        assert second.printed("API key") == key
        assert "First token after" in second.output
        async with AsyncOpenAI(base_url=second.printed("base URL"), api_key=key, max_retries=0) as client:
            assert [model.id async for model in client.models.list()] == [second.printed("model")]


async def test_a_part_that_crashes_is_named_with_its_last_lines_and_everything_stops(
    tmp_path: Path,
    wait_until: WaitUntil,
) -> None:
    async with horde_up(tmp_path, "--no-sample") as horde:
        await horde.ready()
        started = horde.descendants()
        horde.part("horde.native").kill()
        assert await horde.ended() == 1
    await wait_until(lambda: not still_running(started), description="every process to have ended")
    assert "native Horde stopped unexpectedly (signal 9). Its last lines:" in horde.output


async def test_a_stop_while_it_starts_leaves_nothing(tmp_path: Path, wait_until: WaitUntil) -> None:
    async with horde_up(tmp_path) as horde:
        await wait_until(lambda: "Valkey" in horde.output, description="the first part", seconds=30)
        started = horde.descendants()
        horde.process.send_signal(signal.SIGTERM)
        assert await horde.ended() == 0
    await wait_until(lambda: not still_running(started), description="every process to have ended")


async def test_what_was_started_dies_with_a_horde_up_that_is_killed(tmp_path: Path, wait_until: WaitUntil) -> None:
    async with horde_up(tmp_path, "--no-sample") as horde:
        await horde.ready()
        started = horde.descendants()
        horde.process.send_signal(signal.SIGKILL)
        await wait_until(lambda: not still_running(started), description="every process to have ended", seconds=20)


@pytest.mark.parametrize("option", ["--front-port", "--native-port"])
async def test_a_port_in_use_is_one_sentence_before_anything_is_started(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with horde_up(tmp_path, option, str(port)) as horde:
            assert await horde.ended() == 3
    assert horde.output == (
        f"Port {port} on 127.0.0.1 is in use by another program; stop it or choose another port (0 takes a free one)."
        f' Here: make run ARGS="{option} 0", or horde up {option} 0.\n'
    )


async def test_a_model_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    async with horde_up(tmp_path, "--model", str(tmp_path / "none.gguf")) as horde:
        assert await horde.ended() == 3
    assert horde.output == f"There is no model file {tmp_path}/none.gguf.\n"


async def test_a_database_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    async with horde_up(tmp_path, "--database-url", "postgresql://nobody@127.0.0.1:9/none") as horde:
        assert await horde.ended() == 3
    assert "The database cannot be used: " in horde.output


async def test_a_second_one_on_the_same_state_says_so(tmp_path: Path, wait_until: WaitUntil) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    async with horde_up(tmp_path / "first", state_dir=tmp_path / "state") as first:
        await wait_until((tmp_path / "state" / "keys.json").exists, description="the first to hold the folder")
        async with horde_up(tmp_path / "second", state_dir=tmp_path / "state") as second:
            assert await second.ended() == 3
        assert f"Another horde up (process {first.process.pid}) runs on {tmp_path}/state" in second.output
