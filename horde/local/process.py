"""Child processes of this machine: started in a session of their own, watched, stopped once, dead with their parent.

A session of its own keeps a child from the terminal's Ctrl-C: the parent decides in which order things stop. What
must not depend on the parent is the end of a child whose parent was killed: on Linux ``setpriv`` asks the kernel to
signal it then (a ``preexec_fn`` would do the same and is unsafe in a process with threads).
"""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from horde.local.errors import StartError, explain_os_error, ran_out_of_space

__all__ = [
    "ChildProcess",
    "Command",
    "ReadyCheck",
    "read_last_lines",
    "run_to_end",
    "setpriv_path",
    "wait_for_exit",
    "wait_until_ready",
]

ReadyCheck = Callable[[], Awaitable[bool]]
"""Says whether a program that was started can be used by now."""

_POLL_SECONDS = 0.05
"""How often an exit is looked for where the kernel cannot report it (no pidfd: not Linux)."""

_READY_POLL_SECONDS = 0.01

_LAST_LOG_BYTES = 64 * 1024
"""How much of the end of a log is read to show its last lines."""


@functools.cache
def setpriv_path() -> str | None:
    """Return util-linux's ``setpriv``, which changes what a process is before it becomes a program.

    None where there is none, or one that cannot tie a child's life to its parent's (busybox).
    """
    path = shutil.which("setpriv", path="/usr/bin:/bin:/usr/local/bin") if sys.platform == "linux" else None
    if path is None:
        return None
    probe = subprocess.run([path, "--pdeathsig=keep", "--", path, "--version"], capture_output=True, check=False)  # noqa: S603 - fixed
    return path if probe.returncode == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start, and how it is asked to stop.

    Attributes:
        argv: Program and arguments; the program as a full path.
        log_path: File that receives what it prints; written anew at each start.
        environment: The whole environment; None inherits this process's own.
        folder: Working folder.
        inherited: Descriptors the child keeps, such as a listening socket.
        stop_signal: Asks it to stop in good order; also sent by the kernel when the parent dies.
        privileges: Arguments of ``setpriv`` that make it another user.
    """

    argv: Sequence[str | os.PathLike[str]]
    log_path: Path
    environment: Mapping[str, str] | None = None
    folder: Path | None = None
    inherited: tuple[int, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    privileges: Sequence[str] = ()

    def full_argv(self) -> list[str]:
        """Return what is executed: the program behind ``setpriv`` where that exists."""
        argv = [os.fspath(part) for part in self.argv]
        setpriv = setpriv_path()
        if setpriv is None:
            return argv
        return [setpriv, *self.privileges, f"--pdeathsig={self.stop_signal.name.removeprefix('SIG')}", "--", *argv]


@dataclass(slots=True)
class ChildProcess:
    """A program that runs in the foreground of its own session.

    It is bound to no event loop: tests start one in one loop and stop it in another.

    Attributes:
        name: What people call it.
    """

    name: str
    command: Command
    _process: subprocess.Popen[bytes] = field(repr=False)

    @classmethod
    def start(cls, name: str, command: Command) -> "ChildProcess":
        """Start a program; call it from a thread that lives as long as the child should.

        Raises:
            StartError: It cannot be executed, or its log file cannot be written.
        """
        try:
            command.log_path.parent.mkdir(parents=True, exist_ok=True)
            with command.log_path.open("wb") as log:
                process = subprocess.Popen(  # noqa: S603 - a program of ours with arguments of ours
                    command.full_argv(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=command.environment,
                    cwd=command.folder,
                    pass_fds=command.inherited,
                    start_new_session=True,
                )
        except OSError as error:
            raise explain_os_error(error, f"start {name}") from error
        return cls(name, command, process)

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's too."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Wait until it ended and return its exit code; any number of callers may wait."""
        while (code := self._process.poll()) is None:
            if sys.platform == "linux":
                await wait_for_exit(self.pid)
            else:
                await asyncio.sleep(_POLL_SECONDS)
        return code

    async def stop(self, *, grace_seconds: float = 10.0) -> int:
        """Ask it to stop, end it and everything it started when it does not, and return its exit code.

        Args:
            grace_seconds: Time it has to stop in good order.
        """
        self.send_signal(self.command.stop_signal)
        try:
            async with asyncio.timeout(grace_seconds):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()
        except BaseException:
            # Whoever cancels the stopping must not leave the process behind.
            self.kill()
            self._process.wait()
            raise

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal; does nothing once it ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it and every process of its group at once."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def last_log_lines(self, count: int = 20) -> list[str]:
        """Return the last lines it printed, oldest first."""
        return read_last_lines(self.command.log_path, count)


def read_last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log file; none when it cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_LOG_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


async def wait_for_exit(pid: int) -> None:
    """Wait until a process ended, be it a child or not (Linux); it may also return a little early."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        # Gone already, or a kernel older than 5.3.
        await asyncio.sleep(_POLL_SECONDS)
        return
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def wait_until_ready(child: ChildProcess, is_ready: ReadyCheck, *, seconds: float) -> None:
    """Wait until a started program can be used.

    Args:
        child: The program.
        is_ready: Asked every few milliseconds.
        seconds: Longest wait.

    Raises:
        StartError: It ended, or was not ready in time; its last log lines come with it.
    """
    try:
        async with asyncio.timeout(seconds):
            while child.returncode is None:
                if await is_ready():
                    return
                await asyncio.sleep(_READY_POLL_SECONDS)
    except TimeoutError:
        raise _failure(child, f"was not ready after {seconds:.0f} seconds") from None
    raise _failure(child, "ended while it started")


async def run_to_end(child: ChildProcess, *, seconds: float) -> None:
    """Wait for a program that does one thing and ends; it is killed when this is left in any other way.

    Raises:
        StartError: It failed, or took longer than ``seconds``; its last log lines come with it.
    """
    try:
        async with asyncio.timeout(seconds):
            code = await child.wait()
    except TimeoutError:
        raise _failure(child, f"did not end within {seconds:.0f} seconds") from None
    finally:
        child.kill()
    if code != 0:
        raise _failure(child, f"failed with exit code {code}")


def _failure(child: ChildProcess, what: str) -> StartError:
    lines = child.last_log_lines()
    if ran_out_of_space(lines):
        return StartError(f"{child.name} cannot run: the disk is full; free some space and start again.")
    return StartError(f"{child.name} {what}" + ("; its last lines:" if lines else "."), lines)
