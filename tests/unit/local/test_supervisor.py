import asyncio
import signal
from pathlib import Path

import pytest

from horde.local.process import Command
from horde.local.supervisor import FRONT, NATIVE, POSTGRES, STOP_ORDER, VALKEY, Supervisor, first_to_end
from tests.support.waiting import WaitUntil


def sleeper(tmp_path: Path, name: str, script: str = "exec sleep 60") -> Command:
    return Command(argv=["/bin/sh", "-c", script], log_path=tmp_path / f"{name}.log")


async def test_parts_are_stopped_in_order_whatever_the_order_they_started_in(tmp_path: Path) -> None:
    stopped: list[str] = []
    async with Supervisor(lambda name, _: stopped.append(name)) as supervisor:
        for name in (POSTGRES, FRONT, VALKEY, NATIVE):
            supervisor.watch(supervisor.start(name, sleeper(tmp_path, name)))
    assert stopped == [name for name in STOP_ORDER if name in {POSTGRES, FRONT, VALKEY, NATIVE}]


async def test_a_part_that_ends_by_itself_is_named_with_its_last_lines(tmp_path: Path) -> None:
    async with Supervisor(lambda *_: None) as supervisor:
        supervisor.watch(supervisor.start(FRONT, sleeper(tmp_path, FRONT)))
        supervisor.watch(supervisor.start(NATIVE, sleeper(tmp_path, NATIVE, "echo out of memory; exit 5")))
        crash = await supervisor.crash()
    assert (crash.part, crash.returncode, crash.log_lines) == (NATIVE, 5, ["out of memory"])
    assert str(crash) == "native Horde stopped unexpectedly (exit code 5)."


async def test_a_part_that_was_stopped_is_no_crash(tmp_path: Path) -> None:
    supervisor = Supervisor(lambda *_: None)
    async with supervisor:
        supervisor.watch(supervisor.start(FRONT, sleeper(tmp_path, FRONT)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(supervisor.crash(), 0.01)


async def test_a_part_that_was_still_starting_is_stopped_too(tmp_path: Path) -> None:
    async with Supervisor(lambda *_: None) as supervisor:
        child = supervisor.start(FRONT, sleeper(tmp_path, FRONT))
    assert child.returncode == -signal.SIGTERM


async def test_killing_ends_the_wait_for_a_part_that_does_not_stop(tmp_path: Path, wait_until: WaitUntil) -> None:
    stubborn = 'trap "" TERM; echo ready; while :; do sleep 0.01; done'
    supervisor = Supervisor(lambda *_: None)
    async with asyncio.timeout(30):
        child = supervisor.start(FRONT, sleeper(tmp_path, FRONT, stubborn))
        await wait_until(child.last_log_lines, description="the trap to be set")
        stopping = asyncio.create_task(supervisor.stop_all(), name="test - stop all")
        await asyncio.sleep(0)
        supervisor.kill_all()
        await stopping
    assert child.returncode == -signal.SIGKILL


async def test_the_first_to_end_decides_and_the_others_are_cancelled() -> None:
    cancelled = asyncio.Event()

    async def forever() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return 1

    async def at_once() -> int:
        await asyncio.sleep(0)
        return 7

    assert await first_to_end(forever(), at_once()) == 7
    assert cancelled.is_set()
