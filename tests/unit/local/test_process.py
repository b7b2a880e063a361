import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from horde.local.errors import StartError
from horde.local.process import ChildProcess, Command, run_to_end, setpriv_path, wait_until_ready
from tests.support.waiting import WaitUntil


@contextlib.asynccontextmanager
async def running(
    script: str, log_path: Path, *, stop_signal: signal.Signals = signal.SIGTERM
) -> AsyncIterator[ChildProcess]:
    command = Command(argv=["/bin/sh", "-c", script], log_path=log_path, stop_signal=stop_signal)
    child = ChildProcess.start("sleeper", command)
    try:
        yield child
    finally:
        child.kill()
        await child.wait()


async def never() -> bool:
    return False


async def test_a_child_has_a_session_of_its_own(tmp_path: Path) -> None:
    async with running("exec sleep 60", tmp_path / "log") as child:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)


async def test_a_child_is_stopped_by_the_signal_it_understands(tmp_path: Path, wait_until: WaitUntil) -> None:
    script = 'trap "echo bye; exit 7" INT; echo ready; while :; do sleep 0.01; done'
    async with running(script, tmp_path / "log", stop_signal=signal.SIGINT) as child:
        await wait_until(lambda: child.last_log_lines() == ["ready"], description="the trap to be set")
        assert await child.stop() == 7
        assert child.last_log_lines() == ["ready", "bye"]


async def test_a_child_that_does_not_stop_is_ended_with_everything_it_started(
    tmp_path: Path,
    wait_until: WaitUntil,
) -> None:
    script = 'trap "" TERM; sh -c "trap \'\' TERM; echo \\$\\$; while :; do sleep 0.01; done"'
    async with running(script, tmp_path / "log") as child:
        await wait_until(child.last_log_lines, description="the grandchild to run")
        grandchild = int(child.last_log_lines()[0])
        assert await child.stop(grace_seconds=0.05) == -signal.SIGKILL
        await wait_until(lambda: not is_alive(grandchild), description="the grandchild's end")


async def test_stopping_that_is_cancelled_leaves_no_process(tmp_path: Path, wait_until: WaitUntil) -> None:
    async with running('trap "" TERM; echo ready; while :; do sleep 0.01; done', tmp_path / "log") as child:
        await wait_until(child.last_log_lines, description="the trap to be set")
        stopping = asyncio.create_task(child.stop(), name="test - stop")
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert child.returncode == -signal.SIGKILL


async def test_any_number_of_tasks_may_wait_for_one_child(tmp_path: Path) -> None:
    async with running("read line", tmp_path / "log") as child:
        assert list(await asyncio.gather(child.wait(), child.wait())) == [1, 1]


async def test_a_program_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    missing = Command(argv=[tmp_path / "missing"], log_path=tmp_path / "log")
    with pytest.raises(StartError, match=r"failed with exit code|Cannot start tool: No such file or directory"):
        await run_to_end(ChildProcess.start("tool", missing), seconds=30)


async def test_a_program_that_ends_while_it_starts_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    async with running("echo cannot open port; exit 1", tmp_path / "log") as child:
        with pytest.raises(StartError, match="sleeper ended while it started") as failure:
            await wait_until_ready(child, never, seconds=30)
    assert failure.value.log_lines == ["cannot open port"]


async def test_a_program_that_is_never_ready_is_given_up_in_time(tmp_path: Path) -> None:
    async with running("exec sleep 60", tmp_path / "log") as child:
        with pytest.raises(StartError, match="sleeper was not ready after 0 seconds"):
            await wait_until_ready(child, never, seconds=0.02)


async def test_a_full_disk_is_named_when_a_program_dies_of_it(tmp_path: Path) -> None:
    async with running("echo 'could not write: No space left on device'; exit 1", tmp_path / "log") as child:
        with pytest.raises(StartError, match="the disk is full"):
            await wait_until_ready(child, never, seconds=30)


@pytest.mark.skipif(setpriv_path() is None, reason="the kernel's help is asked for through setpriv")
async def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path, wait_until: WaitUntil) -> None:
    script = textwrap.dedent(
        f"""
        import os, pathlib, signal
        from horde.local.process import ChildProcess, Command
        folder = pathlib.Path({str(tmp_path)!r})
        command = Command(argv=["/bin/sh", "-c", "echo up; exec sleep 60"], log_path=folder / "log")
        child = ChildProcess.start("child", command)
        while not child.last_log_lines():
            pass
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    parent = await asyncio.to_thread(
        lambda: subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    )
    orphan = int(parent.stdout)
    await wait_until(lambda: not is_alive(orphan), description="the child's end")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for whoever reaps orphans does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
