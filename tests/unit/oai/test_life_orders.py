"""Every order of status answers, to a bounded length, streamed and whole: each ends as the last of them says.

``HORDE_LIFE_PROFILE=long`` plays one answer more.
"""

import itertools
import os
from collections.abc import Iterator, Sequence

import pytest
from loguru import logger

from tests.support.front_life import LifeScript, Step, live
from tests.support.life_checks import check_life

LONGEST = 4 if os.environ.get("HORDE_LIFE_PROFILE") == "long" else 3

UNDECIDED = ("queued", "processing", "restarted", "impossible", "cancelled", "unwell", "silent", "malformed")
"""Answers after which the wait goes on; of ``cancelled`` for one read only."""

DECIDING = {
    "finished": "",
    "faulted": "ChatRequestFaulted",
    "cancelled": "ChatRequestNoGeneration",
    "forgotten": "RequestNotFound",
    "gap": "no_worker_supports_features",
}
"""Answers that end it, and the code."""

# The steps tell the checks what may have happened; they come after the end and change nothing.
STEPS = tuple(Step(kind, wait=200.0) for kind in ("impossible", "gap", "forget", "requeue"))


def endings_of(order: Sequence[str]) -> set[str]:
    """Return the codes that an order may end in; the empty one is the reply."""
    shown_empty = False
    for kind in order:
        if kind == "cancelled" and shown_empty:
            return {DECIDING["cancelled"]}
        if kind in DECIDING and kind != "cancelled":
            return {DECIDING[kind]}
        if kind == "cancelled":
            shown_empty = True
        elif kind in {"queued", "processing", "restarted", "impossible"}:
            shown_empty = False
    return {DECIDING[order[-1]]}


def waits_long_impossible(order: Sequence[str]) -> bool:
    """Whether the grace may pass before the order has ended: two looks at it, and time between them."""
    return order.count("impossible") > 1 and bool({"silent"} & set(order))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of lives would write thousands of lines."""
    logger.disable("horde.oai")
    yield
    logger.enable("horde.oai")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("last", DECIDING)
@pytest.mark.rule("WAI-3", "WAI-8", "WAI-9", "DWG-1", "DWG-2", "DWG-3", "STR-6")
def test_every_order_of_status_answers_ends_as_its_last_one_says(*, stream: bool, last: str) -> None:
    for length in range(LONGEST):
        for before in itertools.product(UNDECIDED, repeat=length):
            order = (*before, last)
            script = LifeScript(STEPS, stream=stream, usage=False, redis=False, statuses=order)
            answer = check_life(script, live(script))
            code = answer.error["code"] if answer.error else ""
            expected = endings_of(order) | ({"no_eligible_worker"} if waits_long_impossible(order) else set())
            assert code in expected, order
