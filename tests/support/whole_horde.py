"""``horde up`` as a person starts it: a program of its own, its output in a file, stopped by a signal."""

import contextlib
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from horde.local.process import ChildProcess, Command
from tests.support.waiting import wait_until

__all__ = ["WholeHorde", "still_running"]

_START_SECONDS = 90.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WholeHorde:
    """A running ``horde up``.

    Attributes:
        process: The program.
        state_dir: Its state folder.
    """

    process: ChildProcess
    state_dir: Path

    @classmethod
    def start(cls, folder: Path, *options: str, state_dir: Path | None = None) -> "WholeHorde":
        """Start it on free ports.

        Args:
            folder: Where its output is kept.
            *options: Further options, which stand over those that are given anyway.
            state_dir: Its state folder; one below ``folder`` when left out.
        """
        state_dir = state_dir or folder / "state"
        arguments = ["--state-dir", str(state_dir), "--front-port", "0", "--native-port", "0", *options]
        command = Command(
            argv=[sys.executable, "-m", "horde.cli", "up", *arguments],
            log_path=folder / "output.txt",
            folder=Path(__file__).resolve().parents[2],
            stop_signal=signal.SIGINT,
        )
        return cls(ChildProcess.start("horde up", command), state_dir)

    @property
    def output(self) -> str:
        """Everything it printed so far."""
        return self.process.command.log_path.read_text()

    async def ready(self) -> "WholeHorde":
        """Wait until it prints its addresses; its output is in the failure when it does not."""
        await wait_until(
            lambda: "Ready." in self.output or self.process.returncode is not None,
            description="horde up to be ready",
            seconds=_START_SECONDS,
            interval_seconds=0.05,
        )
        assert self.process.returncode is None, self.output
        await wait_until(lambda: "print(reply" in self.output, description="the last line it prints")
        return self

    async def ended(self) -> int:
        """Wait until it ended by itself, and return its exit code."""
        await wait_until(
            lambda: self.process.returncode is not None,
            description="horde up to end",
            seconds=_START_SECONDS,
            interval_seconds=0.05,
        )
        return await self.process.wait()

    async def stop(self) -> int:
        """Press Ctrl-C and return its exit code."""
        return await self.process.stop(grace_seconds=_STOP_SECONDS)

    def descendants(self) -> list[psutil.Process]:
        """Return every process that it started, and those that these started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, module: str) -> psutil.Process:
        """Return the process that runs one of the project's modules."""
        return next(process for process in self.descendants() if module in process.cmdline())

    def printed(self, name: str) -> str:
        """Return what it printed beside a name, such as ``base URL``."""
        match = re.search(rf"^{name} +(\S+)$", self.output, re.MULTILINE)
        assert match, self.output
        return match[1]

    def log(self, part: str) -> str:
        """Return the log of one of its parts."""
        return (self.state_dir / "logs" / f"{part}.log").read_text()


def still_running(processes: list[psutil.Process]) -> list[str]:
    """Return command lines of those processes that have not ended."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                lines.append(" ".join(process.cmdline()))
    return lines
