"""Which signals cost a status read. Virtual time, a hand-written status."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from horde.chat_contract import SignalEvent
from horde.oai.horde_client import NativeAnswer
from horde.oai.native_status import NativeStatus
from horde.oai.signals import SignalSubscription
from horde.oai.waiter import ChatRequestWatcher, WaitBudget, WaitTiming
from tests.support.scripted_horde import status
from tests.support.virtual_time import run_in_virtual_time


class Wait:
    """One wait, and the sources of its reads.

    Attributes:
        status: What the next read shows.
        sources: Why each read was made.
        changes: How often the stream was told to look.
    """

    def __init__(self) -> None:
        self.status: dict[str, Any] = status()
        self.sources: list[str] = []
        self.changes = 0
        self.signals = SignalSubscription("one", lambda _subscription: None)
        loop = asyncio.get_running_loop()
        self.watcher = ChatRequestWatcher(
            self._read,
            budget=WaitBudget(loop.time() + 600, loop.time),
            timing=WaitTiming(),
            observer=self,
            signals=self.signals,
            signals_alive=lambda: True,
        )
        self.watcher.on_change = self._change

    async def _read(self, _seconds: float) -> NativeAnswer:
        return NativeAnswer(200, self.status, {}, "http://horde")

    def _change(self) -> None:
        self.changes += 1

    def read(self, source: str, _status: NativeStatus | None) -> None:
        self.sources.append(source)

    def decided(self, _status: NativeStatus) -> None:
        """Every wait here decides at its first read."""

    def after(self, seconds: float, event: SignalEvent, **fields: object) -> None:
        """Let a signal come, and the status be another from then on."""

        def come() -> None:
            self.status |= fields
            self.signals.receive(event)

        asyncio.get_running_loop().call_later(seconds, come)


def sources_of(script: Coroutine[Any, Any, Wait]) -> list[str]:
    return run_in_virtual_time(script).sources


def finished() -> dict[str, Any]:
    return status("replied")


@pytest.mark.rule("WAI-1", "WAI-2")
def test_a_request_that_starts_and_finishes_is_read_twice() -> None:
    async def script() -> Wait:
        wait = Wait()
        await wait.watcher.decide()
        wait.after(3, SignalEvent.STARTED)
        wait.after(9, SignalEvent.FINISHED, **finished())
        reply = await wait.watcher.wait()
        assert reply.replied
        return wait

    assert sources_of(script()) == ["immediate", "signal"]


@pytest.mark.rule("WAI-2")
def test_a_start_is_told_to_the_stream_at_once() -> None:
    async def script() -> Wait:
        wait = Wait()
        await wait.watcher.decide()
        waiting = asyncio.create_task(wait.watcher.wait())
        wait.after(3, SignalEvent.STARTED)
        told = wait.changes
        await asyncio.sleep(3.1)
        assert wait.watcher.started
        assert wait.changes == told + 1
        waiting.cancel()
        await asyncio.wait({waiting})
        return wait

    assert sources_of(script()) == ["immediate"]


@pytest.mark.rule("WAI-2")
def test_a_finish_right_behind_a_start_is_not_taken_for_it() -> None:
    async def script() -> Wait:
        wait = Wait()
        await wait.watcher.decide()
        wait.after(3, SignalEvent.STARTED)
        wait.after(3, SignalEvent.FINISHED, **finished())
        began = asyncio.get_running_loop().time()
        await wait.watcher.wait()
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.01)
        return wait

    assert sources_of(script()) == ["immediate", "signal"]


@pytest.mark.rule("WAI-2", "WAI-4")
def test_a_finish_whose_signal_was_lost_is_found_at_the_next_poll_after_a_start() -> None:
    async def script() -> Wait:
        wait = Wait()
        await wait.watcher.decide()
        wait.after(3, SignalEvent.STARTED)
        wait.status = finished()
        began = asyncio.get_running_loop().time()
        await wait.watcher.wait()
        assert asyncio.get_running_loop().time() - began < WaitTiming().signalled_poll + 1
        return wait

    assert sources_of(script()) == ["immediate", "poll"]
