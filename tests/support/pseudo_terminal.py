"""A program on a pseudo-terminal, and what it wrote there."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["PseudoTerminal", "on_a_terminal"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CHANGES = re.compile(r"\x1b(\[\?[0-9;]*[hl]|[=>78c])")
"""What sets modes of a terminal: the cursor's, the screen's, the mouse's, the keyboard's."""


@dataclass(slots=True)
class PseudoTerminal:
    """A terminal of 120 columns and 40 lines with a program on it.

    Attributes:
        process: The program.
        master: The other end.
        modes: The terminal's modes at the start.
        written: What was read of what the program wrote.
    """

    process: asyncio.subprocess.Process
    master: int
    slave: int
    modes: list[object]
    written: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        """What was written, without escape sequences."""
        return _ESCAPES.sub("", self.raw)

    @property
    def raw(self) -> str:
        """What was written."""
        return self.written.decode(errors="replace")

    @property
    def changes(self) -> list[str]:
        """What was written that changes a mode of the terminal."""
        return [match[0] for match in _CHANGES.finditer(self.raw)]

    @property
    def has_its_modes(self) -> bool:
        """Whether line discipline and echo are as they were."""
        return termios.tcgetattr(self.slave) == self.modes

    def read(self) -> None:
        """Take what the program wrote."""
        self.written += os.read(self.master, 65536)


@asynccontextmanager
async def on_a_terminal(
    *arguments: str, environment: dict[str, str], watched: bool = True
) -> AsyncIterator[PseudoTerminal]:
    """Run a module of ours on a terminal.

    Args:
        arguments: What ``python -m`` takes.
        environment: The whole environment.
        watched: Whether what it writes is read; otherwise the terminal takes no more once it is full.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    loop = asyncio.get_running_loop()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    terminal = PseudoTerminal(process, master, slave, termios.tcgetattr(slave))
    if watched:
        loop.add_reader(master, terminal.read)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        loop.remove_reader(master)
        os.close(master)
        os.close(slave)
