"""A terminal as the worker's view writes to it, and the log that goes to the same one."""

import contextlib
import io
import os
import sys
from collections import deque
from collections.abc import Mapping
from typing import Final, TextIO, override

__all__ = ["LogLines", "UnbufferedTerminal", "is_view_wanted"]

_MAX_LINES: Final = 1000
"""Lines of the log that wait to be drawn; of a terminal that takes nothing the oldest are left out."""


def is_view_wanted(*, plain: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether standard output is a terminal that can show a view, and nobody asked for plain lines."""
    return sys.stdout.isatty() and not plain and environment.get("TERM", "dumb") != "dumb"


class LogLines(io.StringIO):
    """Where the log goes while there is a view: lines wait until they are drawn above it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._left_out = 0
        self._ended = False
        self._next: TextIO | None = None

    @override
    def isatty(self) -> bool:
        """Whether colours may be used."""
        return True

    @override
    def write(self, text: str) -> int:
        """Take lines; returns at once while there is a view."""
        if self._ended:
            return len(text) if self._next is None else self._next.write(text)
        self._left_out += len(self._lines) == _MAX_LINES
        self._lines.append(text)
        return len(text)

    def take(self) -> str:
        """Return what waits, as one text."""
        lines, left_out = [], self._left_out
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        self._left_out = 0
        if left_out:
            lines.insert(0, f"({left_out} lines of the log were left out)\n")
        return "".join(lines)

    def end(self, stream: TextIO | None) -> None:
        """Note that there is no view any more.

        Args:
            stream: Where the log goes from now on, with what still waits; None leaves it out.
        """
        self._ended, self._next = True, stream
        if stream is not None:
            stream.write(self.take())


class UnbufferedTerminal(io.StringIO):
    """A terminal that is written to without a buffer: its lock could be held by a thread that the terminal holds.

    Args:
        stream: Standard output, or another stream with a descriptor.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._descriptor = stream.fileno()

    @override
    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    @override
    def isatty(self) -> bool:
        """Whether it is a terminal: that was asked before."""
        return True

    @override
    def write(self, text: str) -> int:
        """Write all of a text.

        Raises:
            OSError: The terminal is gone.
        """
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._descriptor, data) :]
        return len(text)
