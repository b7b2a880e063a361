"""``horde up``: a whole Horde on one machine, from the first process to the last, in the foreground."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator

from horde.local.console import Terminal
from horde.local.errors import StartError, ran_out_of_space
from horde.local.sample import SAMPLE_QUESTION, SampleTimes, stream_reply
from horde.local.start import Running, Start, UpOptions
from horde.local.state import StateFolder
from horde.local.supervisor import Supervisor, first_to_end

__all__ = ["EXIT_CRASHED", "EXIT_OK", "EXIT_START_FAILED", "run_up"]

EXIT_OK, EXIT_CRASHED, EXIT_START_FAILED = 0, 1, 3

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_up(options: UpOptions, terminal: Terminal) -> int:
    """Start everything, show that it works, keep it running until a signal, stop everything.

    Args:
        options: What to start.
        terminal: Where to say so.

    Returns:
        0 after a stop by signal, 1 when a part crashed, 3 when something could not be started.
    """

    def say_stopped(name: str, seconds: float) -> None:
        terminal.say(f"Stopped {name} ({seconds:.1f} s).", style="dim")

    supervisor = Supervisor(say_stopped)
    try:
        with StateFolder(options.state_dir) as state, _signals(supervisor) as stopped:
            async with supervisor:
                return await first_to_end(
                    _until_stopped(stopped, terminal),
                    _until_crash(supervisor, terminal),
                    _live(options, terminal, state, supervisor),
                )
    except StartError as error:
        terminal.fail(str(error), error.log_lines)
        return EXIT_START_FAILED


@contextlib.contextmanager
def _signals(supervisor: Supervisor) -> Iterator[asyncio.Event]:
    """Turn the first signal into an event, and the second into an end without waiting."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def on_signal() -> None:
        if stopped.is_set():
            supervisor.kill_all()
        stopped.set()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stopped
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _until_stopped(stopped: asyncio.Event, terminal: Terminal) -> int:
    await stopped.wait()
    terminal.say("\nStopping; once more ends everything at once.")
    return EXIT_OK


async def _until_crash(supervisor: Supervisor, terminal: Terminal) -> int:
    crash = await supervisor.crash()
    if ran_out_of_space(crash.log_lines):
        terminal.fail(f"{crash.part} stopped: the disk is full; free some space and start again.")
    else:
        terminal.fail(f"{crash} Its last lines:", crash.log_lines)
    return EXIT_CRASHED


async def _live(options: UpOptions, terminal: Terminal, state: StateFolder, supervisor: Supervisor) -> int:
    """Start everything and stay; ends by cancellation, or by what cannot be started."""
    with terminal.steps() as steps:
        running = await Start(options, state, supervisor, steps).run()
        online_seconds = steps.seconds
    if options.sample:
        await _show_sample(running, terminal, online_seconds)
    _show_addresses(running, terminal)
    await asyncio.Event().wait()
    return EXIT_OK


async def _show_sample(running: Running, terminal: Terminal, online_seconds: float) -> None:
    terminal.say(f"\n> {SAMPLE_QUESTION}", style="bold")
    times = SampleTimes()
    async for piece in stream_reply(running.base_url, running.api_key, running.model, times):
        terminal.piece(piece)
    first = times.first_piece_seconds
    if first is None:
        raise StartError("The sample reply has no text.")
    total = online_seconds + first
    terminal.say()
    terminal.say(
        f"First token after {first * 1000:.0f} ms, whole reply after {time.monotonic() - times.asked:.1f} s;"
        f" {total:.1f} s from the start to the first token.",
        style="dim",
    )


def _show_addresses(running: Running, terminal: Terminal) -> None:
    terminal.say("\nReady. Ctrl-C stops everything.\n", style="bold green")
    terminal.say(f"base URL  {running.base_url}")
    terminal.say(f"API key   {running.api_key}")
    terminal.say(f"model     {running.model}\n")
    body = f'{{"model": "{running.model}", "stream": true, "messages": [{{"role": "user", "content": "Hi!"}}]}}'
    terminal.say(
        f"curl -N {running.base_url}/chat/completions -H 'Authorization: Bearer {running.api_key}'"
        f" -H 'Content-Type: application/json' -d '{body}'\n",
    )
    terminal.say(
        "from openai import OpenAI\n"
        f'client = OpenAI(base_url="{running.base_url}", api_key="{running.api_key}")\n'
        f'reply = client.chat.completions.create(model="{running.model}",'
        ' messages=[{"role": "user", "content": "Hi!"}])\n'
        "print(reply.choices[0].message.content)\n",
    )
