"""What ``horde up`` says: moving lines on a terminal, plain ones elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Self, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

__all__ = ["Steps", "Terminal"]


class Steps:
    """Shows steps that run at the same time, each with the time it took.

    Args:
        console: Where to show them.
    """

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._console = console
        self._moving: Progress | None = None
        if console.is_terminal:
            self._moving = Progress(
                SpinnerColumn(finished_text="[green]✓"),
                TextColumn("{task.description}"),
                TextColumn("{task.fields[took]}", style="dim"),
                console=console,
                transient=False,
            )

    def __enter__(self) -> Self:
        if self._moving is not None:
            self._moving.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._moving is not None:
            self._moving.stop()

    @property
    def seconds(self) -> float:
        """Time since the first step could start."""
        return time.monotonic() - self._started

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a step while the block runs; a block that fails is left as it is."""
        began = time.monotonic()
        shown: TaskID | None = None
        if self._moving is not None:
            shown = self._moving.add_task(name, total=1, took="")
        yield
        took = f"{time.monotonic() - began:.1f} s"
        if self._moving is not None and shown is not None:
            self._moving.update(shown, completed=1, took=took)
        else:
            self._console.print(f"{self.seconds:5.1f} s  {name} ({took})", highlight=False, markup=False)


class Terminal:
    """Standard output for what was asked for, standard error for what went wrong.

    Args:
        output: For the steps, the sample and the addresses.
        errors: For failures.
    """

    def __init__(self, output: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._console = Console(file=output or sys.stdout, soft_wrap=True)
        self._errors = Console(file=errors or sys.stderr, soft_wrap=True, stderr=True)

    def steps(self) -> Steps:
        """Return a new list of steps; its clock starts now."""
        return Steps(self._console)

    def say(self, text: str = "", *, style: str = "") -> None:
        """Print a line as it is."""
        self._console.print(Text(text, style=style))

    def piece(self, text: str) -> None:
        """Print a piece of a line at once."""
        self._console.file.write(text)
        self._console.file.flush()

    def fail(self, sentence: str, log_lines: Sequence[str] = ()) -> None:
        """Print what went wrong, with the last lines of the log of what failed."""
        self._errors.print(Text(sentence, style="bold red"))
        for line in log_lines:
            self._errors.print(Text(f"    {line}", style="dim"))
