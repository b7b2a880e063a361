"""What a worker shows on a terminal: each worker's state, jobs, tokens and kudos, below the log.

A thread draws it, twice a second, so that neither drawing nor a terminal that takes nothing (Ctrl-S, a slow line) ever
holds a job. Nothing of the terminal is changed: no other screen, no hidden cursor, no mode. So nothing has to be put
back, however the program ends.
"""

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self, TextIO, override

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from horde.worker.activity import WorkerActivity
from horde.worker.metrics import JobOutcome, WorkerState
from horde.worker.terminal import LogLines, UnbufferedTerminal

__all__ = ["TerminalView", "TokenRates", "render"]

_REDRAW_SECONDS: Final = 0.5
_RATE_SECONDS: Final = 5.0
"""Tokens per second are of this time."""

_MAX_JOBS: Final = 8
_CLOSE_SECONDS: Final = 1.0

_STATE_STYLES: Final[Mapping[WorkerState, str]] = {
    WorkerState.SERVING: "green",
    WorkerState.AWAY: "red",
    WorkerState.FAILED: "red",
    WorkerState.STARTING: "yellow",
    WorkerState.STOPPING: "yellow",
}


class _Console(Console):
    @override
    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: one that was hidden would stay so after a SIGKILL."""
        return False


class TerminalView:
    """Draws what workers are doing; a context manager.

    Args:
        activities: The workers.
        lines: The log, when it goes to the same terminal.
        output: The terminal.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        activities: Sequence[WorkerActivity],
        lines: LogLines | None,
        *,
        output: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activities = activities
        self._lines = lines
        self._clock = clock
        self._rates = TokenRates(clock)
        self._console = _Console(file=UnbufferedTerminal(output or sys.stdout), force_terminal=True, highlight=False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker - view", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._lines is not None:
            # A terminal that takes nothing is left to itself.
            self._lines.end(None if self._thread.is_alive() else sys.stderr)

    def _run(self) -> None:
        try:
            # A terminal that is gone ends the view, and nothing else.
            with contextlib.suppress(OSError):
                self._draw_until_closed()
        finally:
            if self._lines is not None:
                self._lines.end(sys.stderr)

    def _draw_until_closed(self) -> None:
        with Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
            while not self._closing.wait(_REDRAW_SECONDS):
                self._draw(live)
            self._draw(live)

    def _draw(self, live: Live) -> None:
        if self._lines is not None and (text := self._lines.take()):
            self._console.print(Text.from_ansi(text.removesuffix("\n")))
        live.update(render(self._activities, self._rates.read(self._activities)), refresh=True)


class TokenRates:
    """Tokens per second of each worker over the last seconds, from how many pieces came.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def read(self, activities: Sequence[WorkerActivity]) -> dict[str, float]:
        """Look at the workers and return their rates by label."""
        now = self._clock()
        rates = {}
        for worker in activities:
            seen = self._seen.setdefault(worker.label, deque())
            seen.append((now, worker.pieces))
            while len(seen) > 1 and now - seen[0][0] > _RATE_SECONDS:
                seen.popleft()
            since, pieces = seen[0]
            rates[worker.label] = (worker.pieces - pieces) / (now - since) if now > since else 0.0
        return rates


def render(activities: Sequence[WorkerActivity], rates: Mapping[str, float]) -> RenderableType:
    """Return the view of some workers.

    Args:
        activities: The workers.
        rates: Tokens per second, by label.
    """
    table = Table("worker", "model", "state", box=None, header_style="dim", pad_edge=False)
    for title in ("jobs", "tokens/s", "served", "faulted", "tokens", "kudos"):
        table.add_column(title, justify="right")
    for worker in activities:
        ended = worker.ended
        state = "Horde away" if worker.horde_away and worker.state is WorkerState.SERVING else worker.state.value
        style = "red" if worker.horde_away else _STATE_STYLES.get(worker.state, "")
        table.add_row(
            Text(worker.label),
            Text(worker.model),
            Text(state, style=style),
            f"{worker.running_count}/{worker.threads}",
            f"{rates[worker.label]:.1f}",
            f"{ended[JobOutcome.TAKEN]}",
            Text(f"{ended[JobOutcome.FAULTED]}", style="red" if ended[JobOutcome.FAULTED] else ""),
            f"{worker.reply_tokens}",
            f"{worker.kudos:.1f}",
        )
    return Group(Text(), table, *_job_lines(activities), *_trouble_lines(activities))


def _job_lines(activities: Sequence[WorkerActivity]) -> list[Text]:
    """Return a line for each of the jobs that run longest."""
    jobs = [(worker.label, job) for worker in activities for job in tuple(worker.running.values())]
    jobs.sort(key=lambda entry: entry[1].started_at)
    lines = [
        Text(f"  {label}  {job.job_id[:8]}  {job.seconds:5.1f} s  {job.pieces} tokens", style="dim")
        for label, job in jobs[:_MAX_JOBS]
    ]
    more = len(jobs) - _MAX_JOBS
    return [*lines, *([Text(f"  and {more} more", style="dim")] if more > 0 else [])]


def _trouble_lines(activities: Sequence[WorkerActivity]) -> list[Text]:
    """Return the last sentence about what went wrong, of each worker that has one."""
    return [Text(f"  {worker.label}: {worker.trouble}", style="yellow") for worker in activities if worker.trouble]
