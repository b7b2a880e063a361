"""The worker on a real terminal: what it shows, and that it leaves the terminal as it found it."""

import asyncio
import os
import signal
import sys

import pytest

from tests.support.programs import ended, program
from tests.support.scripted_model import Finish, Say, ScriptedModel, Stall, tokens
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.serving import Served
from tests.support.waiting import WaitUntil

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from tests.support.pseudo_terminal import on_a_terminal

MODEL = "scripted-1B"
_SECONDS = 60.0

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]


def environment(horde: Horde, model: Model, **variables: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
    return {
        **plain,
        "TERM": "xterm-256color",
        "HORDE_WORKER_HORDE_URL": horde.url,
        "HORDE_WORKER_BACKEND_URL": model.url,
        "HORDE_WORKER_API_KEY": "secret-worker-key",
        "HORDE_WORKER_DRAIN_SECONDS": "600",
        **variables,
    }


async def test_it_shows_what_runs_and_what_was_earned_below_the_log(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("The sea is wide"), [Say("The"), Stall(asyncio.Event())])
    served, running = chat_job(model=MODEL), chat_job(model=MODEL, job_id="running-job")
    horde.server.give(served, running)
    async with on_a_terminal("horde.worker", environment=environment(horde, model)) as terminal:
        await wait_until(lambda: "running-  " in terminal.text, description="the running job", seconds=_SECONDS)
        shown = terminal.text[terminal.text.rindex("worker  model") :]
        row = next(line for line in shown.splitlines() if MODEL in line)
        assert row.split() == ["worker", MODEL, "serving", "1/1", row.split()[4], "1", "0", "5", "1.5"]
        assert f"Job {served['id']}: 5 tokens" in terminal.text
        assert "\x1b[3" in terminal.raw, "colours"
        assert "secret-worker-key" not in terminal.raw


@pytest.mark.parametrize("way", ["one signal", "two signals", "interrupt", "hang-up", "kill", "quit", "refusal"])
async def test_however_it_ends_the_terminal_is_as_it_was(
    horde: Horde, model: Model, wait_until: WaitUntil, way: str
) -> None:
    go_on = asyncio.Event()
    model.server.play([Say("The"), Stall(go_on), Finish()])
    if way == "refusal":
        horde.server.pop_refusals.append((401, {"message": "No.", "rc": "InvalidAPIKey"}))
    else:
        horde.server.give(chat_job(model=MODEL))
    expected = {"two signals": 1, "kill": -signal.SIGKILL, "quit": -signal.SIGQUIT, "refusal": 3}
    signals = {"interrupt": signal.SIGINT, "hang-up": signal.SIGHUP, "kill": signal.SIGKILL, "quit": signal.SIGQUIT}
    async with on_a_terminal("horde.worker", environment=environment(horde, model)) as terminal:
        if way != "refusal":
            await wait_until(lambda: "1 tokens" in terminal.text, description="the job", seconds=_SECONDS)
            terminal.process.send_signal(signals.get(way, signal.SIGTERM))
        if way == "two signals":
            await wait_until(lambda: horde.server.pops[-1]["chat_jobs"] is False, description="the worker to withdraw")
            terminal.process.send_signal(signal.SIGTERM)
        elif way not in {"kill", "quit"}:
            go_on.set()
        async with asyncio.timeout(_SECONDS):
            assert await terminal.process.wait() == expected.get(way, 0)
        assert (terminal.changes, terminal.has_its_modes) == ([], True)


async def test_a_terminal_that_takes_nothing_holds_neither_jobs_nor_the_end(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    model.server.play(tokens("The sea is wide"))
    jobs = [chat_job(model=MODEL) for _ in range(60)]  # each is a line of the log; the terminal takes 4 KiB
    horde.server.give(*jobs)
    variables = environment(horde, model)
    async with on_a_terminal("horde.worker", environment=variables, watched=False) as terminal:
        await wait_until(lambda: len(horde.server.submits) == 60, description="the replies", seconds=_SECONDS)
        terminal.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_SECONDS):
            assert await terminal.process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [(["--plain"], {}), ([], {"HORDE_WORKER_PLAIN": "true"}), ([], {"TERM": "dumb"})],
    ids=["option", "variable", "terminal without cursor"],
)
async def test_plain_lines_are_all_there_is_when_asked_for(
    horde: Horde, model: Model, wait_until: WaitUntil, arguments: list[str], variables: dict[str, str]
) -> None:
    model.server.play(tokens("The sea is wide"))
    horde.server.give(chat_job(model=MODEL))
    set_variables = environment(horde, model, **variables)
    async with on_a_terminal("horde.worker", *arguments, environment=set_variables) as terminal:
        await wait_until(lambda: "5 tokens in" in terminal.text, description="the log's line", seconds=_SECONDS)
        terminal.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_SECONDS):
            assert await terminal.process.wait() == 0
    assert "tokens/s" not in terminal.text
    assert "\x1b[1A" not in terminal.raw


async def test_without_colours_the_view_stays(horde: Horde, model: Model, wait_until: WaitUntil) -> None:
    variables = environment(horde, model, NO_COLOR="1")
    async with on_a_terminal("horde.worker", environment=variables) as terminal:
        await wait_until(lambda: "serving" in terminal.text, description="the view", seconds=_SECONDS)
        assert "\x1b[3" not in terminal.raw


async def test_where_there_is_no_terminal_the_log_is_json_lines(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    async with program("horde.worker", **environment(horde, model)) as process:
        await wait_until(lambda: horde.server.pops, description="a pop", seconds=_SECONDS)
        process.send_signal(signal.SIGTERM)
        code, output = await ended(process)
    assert code == 0
    assert all(line.startswith("{") for line in output.splitlines())
