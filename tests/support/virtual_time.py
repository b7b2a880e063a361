"""An event loop whose time is virtual: when everything waits, its clock jumps to the next timer.

A wait of ten minutes takes microseconds, and what happens depends on the script alone and not on the machine. It has
no sockets and no threads: what runs on it is given its network in memory.
"""

import asyncio
import functools
import sys
import time
import types
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["StuckError", "VirtualLoop", "run_in_virtual_time"]

_START = 1_000.0
_EPOCH = 1_700_000_000.0
_TURN_SECONDS = 1e-6
"""How long one turn of the loop takes. Real ones take time too, so a wait may end a hair late and never early."""

_MAX_TURNS = 400_000
"""More than any script needs; a program that spins without waiting ends here and not in the test's time limit."""


class StuckError(AssertionError):
    """The program waits for something that can never happen, or spins."""


class _NoFiles:
    """In place of a selector: nothing to select from, only time to pass."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckError("nothing is scheduled, and the program has not ended")
        self._loop.pass_turn(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop.

    Attributes:
        now: Its seconds.
        failures: Contexts of exceptions that nobody retrieved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = _START
        self.failures: list[dict[str, Any]] = []
        self._turns = 0
        self._selector = _NoFiles(self)
        self.set_exception_handler(lambda _loop, context: self.failures.append(context))

    def time(self) -> float:
        """Return the virtual seconds."""
        return self.now

    def pass_turn(self, seconds: float) -> None:
        """Let time pass, and the turn of the loop itself."""
        self._turns += 1
        if self._turns > _MAX_TURNS:
            raise StuckError("the program spins")
        self.now += seconds + _TURN_SECONDS

    def pending_timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers that would still fire."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined] # the library's own list
        return [timer for timer in scheduled if not timer.cancelled()]

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads."""


def _functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in vars(module).values():
        if isinstance(value, types.FunctionType):
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from (each for each in vars(value).values() if isinstance(each, types.FunctionType))


def _clock_of(loop: VirtualLoop) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        monotonic=loop.time,
        perf_counter=loop.time,
        time=lambda: _EPOCH + loop.now,
        time_ns=lambda: int((_EPOCH + loop.now) * 1e9),
    )


@contextmanager
def _clocks_of(package: str, loop: VirtualLoop) -> Iterator[None]:
    """Let the modules of a package read the loop's time: where they call ``time``, and where a clock is a default."""
    clock = _clock_of(loop)
    swap = {time.monotonic: clock.monotonic, time.perf_counter: clock.perf_counter, time.time: clock.time}
    with _undoing() as undo:
        for name, module in list(sys.modules.items()):
            if not name.startswith(package):
                continue
            if vars(module).get("time") is time:
                undo.append((module, "time", time))
                module.time = clock  # type: ignore[attr-defined] # it has that name
            for function in _functions_of(module):
                _swap_defaults(function, swap, undo)
        yield


@contextmanager
def _undoing() -> Iterator[list[tuple[Any, str, Any]]]:
    changes: list[tuple[Any, str, Any]] = []
    try:
        yield changes
    finally:
        for owner, name, value in reversed(changes):
            setattr(owner, name, value)


def _swap_defaults(function: types.FunctionType, swap: dict[Any, Any], undo: list[tuple[Any, str, Any]]) -> None:
    positional, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    if any(_is_in(value, swap) for value in positional):
        undo.append((function, "__defaults__", positional))
        function.__defaults__ = tuple(swap[value] if _is_in(value, swap) else value for value in positional)
    if any(_is_in(value, swap) for value in named.values()):
        undo.append((function, "__kwdefaults__", named))
        function.__kwdefaults__ = {name: swap[value] if _is_in(value, swap) else value for name, value in named.items()}


def _is_in(value: object, swap: dict[Any, Any]) -> bool:
    return isinstance(value, types.BuiltinFunctionType) and value in swap


def run_in_virtual_time[T](main: Coroutine[Any, Any, T], *, package: str = "horde.oai") -> T:
    """Run a program to its end in virtual time, and check that it left nothing behind.

    Args:
        main: The program.
        package: Modules that read the virtual clock.

    Raises:
        StuckError: It waits for ever.
        AssertionError: A task or a timer is left, or an exception nobody looked at.
    """
    loop = VirtualLoop()
    with _clocks_of(package, loop), asyncio.Runner(loop_factory=functools.partial(_same, loop)) as runner:
        result = runner.run(main)
        tasks = [task.get_name() for task in asyncio.all_tasks(loop) if not task.done()]
        timers = loop.pending_timers()
    assert tasks == [], f"tasks left: {tasks}"
    assert timers == [], f"timers left: {timers}"
    assert loop.failures == [], f"nobody looked at: {loop.failures}"
    return result


def _same(loop: VirtualLoop) -> VirtualLoop:
    return loop
