"""A model server whose reply is made of the question, so that each client knows the one reply that is its own."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tests.support.scripted_model import Finish, Say, ScriptedModel, Stall, Step

if TYPE_CHECKING:
    from tests.support.scripted_model import _ScriptedStream

__all__ = ["EchoModel", "reply_to"]

_WORDS = 8


def reply_to(question: str) -> str:
    """Return the one right reply."""
    return " ".join(f"{question} {number}" for number in range(_WORDS))


class EchoModel(ScriptedModel):
    """The scripted model, with a script made for each question.

    Args:
        word_seconds: Time between two words.
    """

    def __init__(self, word_seconds: float) -> None:
        super().__init__(window=32768)
        self._word_seconds = word_seconds

    async def _complete(self, request: Request) -> "Response | _ScriptedStream":
        body = orjson.loads(await request.body())
        self.scripts = deque([self._script(str(body["messages"][-1]["content"]))])
        # The body is read already: nothing else runs before the script is taken.
        return await super()._complete(request)

    def _script(self, question: str) -> list[Step]:
        loop = asyncio.get_running_loop()
        steps: list[Step] = []
        for number, word in enumerate(reply_to(question).split(" ")):
            due = asyncio.Event()
            loop.call_later(number * self._word_seconds / 2, due.set)
            steps += [Stall(due), Say(f" {word}" if number else word)]
        return [*steps, Finish()]
