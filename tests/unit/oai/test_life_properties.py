"""The life of a chat request under any script: what the client holds, and what the front leaves behind.

The whole front runs, from the chat handler to the messages it sends, over a Horde in memory and in virtual time
(``tests/support/front_life.py``); the invariants are in ``tests/support/life_checks.py``.

``HORDE_LIFE_PROFILE=long .venv/bin/pytest tests/unit/oai/test_life_properties.py`` plays twenty times as many scripts,
new ones each time; without it the scripts are few, and the same for everybody.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loguru import logger

from tests.support.front_life import LifeScript, Step, live
from tests.support.life_checks import check_life
from tests.support.model_horde import CALL_FATES

LONG = os.environ.get("HORDE_LIFE_PROFILE", "ci") == "long"
scripts_played = settings(
    max_examples=2000 if LONG else 100,
    derandomize=not LONG,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

waits = st.sampled_from([0.0, 0.001, 0.3, 1.0, 4.0, 16.0])
texts = st.sampled_from(["", "One ", "two, ", "three. ", "é漢 ", "a longer sentence with several words "])


def steps(*kinds: str, whole: bool = False) -> st.SearchStrategy[Step]:
    """Steps of some kinds; ``whole``: no entry and no signal is lost or doubled."""
    return st.builds(
        Step,
        kind=st.sampled_from(kinds),
        wait=waits,
        text=texts,
        reasoning=st.sampled_from(["", "", "hm, "]),
        copies=st.just(1) if whole else st.sampled_from([1, 1, 1, 1, 0, 2]),
        signals=st.just(1) if whole else st.sampled_from([1, 1, 0, 2]),
        honest=st.sampled_from([True] if whole else [True, True, True, False]),
    )


WORK = ("start", "post", "post", "post", "finish")
TROUBLE = ("requeue", "requeue", "fault", "cancel", "impossible", "possible", "gap", "forget")
OUTSIDE = ("leave", "stop", "redis_down", "redis_up")

fates = st.lists(st.sampled_from(CALL_FATES), max_size=4).map(tuple)
shapes: dict[str, Any] = {
    "stream": st.sampled_from([True, True, False]),
    "usage": st.booleans(),
    "reasoning": st.booleans(),
    "redis": st.sampled_from([True, True, True, False]),
    "paced": st.booleans(),
}


def scripts(script_steps: st.SearchStrategy[tuple[Step, ...]], **more: Any) -> st.SearchStrategy[LifeScript]:
    """Scripts of such steps."""
    return st.builds(LifeScript, steps=script_steps, **shapes, **more)


def worked(tail: st.SearchStrategy[Step], *, whole: bool = False) -> st.SearchStrategy[tuple[Step, ...]]:
    """Steps of a job that starts, posts, and then goes its way."""
    posts = st.lists(steps("post", whole=True), max_size=4)
    ends = st.lists(tail, max_size=7)
    return st.builds(lambda start, made, rest: (start, *made, *rest), steps("start", whole=whole), posts, ends)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of lives would write thousands of lines."""
    logger.disable("horde.oai")
    yield
    logger.enable("horde.oai")


@scripts_played
@given(scripts(worked(steps(*WORK, "requeue", "fault"))))
@pytest.mark.rule("DLT-25", "DLT-26", "DLT-27", "DLT-28", "DLT-29", "STR-6", "STR-17")
def test_live_text_is_a_prefix_of_the_reply_or_the_stream_ends_in_an_error(script: LifeScript) -> None:
    check_life(script, live(script))


@scripts_played
@given(scripts(worked(steps(*WORK, *TROUBLE, *OUTSIDE)), reads=fates, cancels=fates, fail_fast=st.booleans()))
@pytest.mark.rule("CAN-1", "CAN-3", "CAN-6", "WAI-5", "WAI-6", "WAI-8", "WAI-9")
def test_a_request_ends_once_and_releases_all_whatever_happens_to_it(script: LifeScript) -> None:
    check_life(script, live(script))


@scripts_played
@given(
    scripts(
        st.lists(steps(*WORK, *OUTSIDE), max_size=6).map(tuple),
        submits=fates,
        cancels=fates,
        read_seconds=st.sampled_from([0.0, 0.0, 0.5, 31.0]),
    )
)
@pytest.mark.rule("SUB-1", "SUB-4", "CAN-1", "CAN-7")
def test_a_submit_makes_one_request_at_most_and_leaves_none_that_nobody_wants(script: LifeScript) -> None:
    check_life(script, live(script))


reads_in_time = st.lists(st.sampled_from(["slow", "slow", "ok"]), max_size=4).map(tuple)


@scripts_played
@given(scripts(worked(steps("finish", *WORK, "requeue", whole=True), whole=True), reads=reads_in_time))
@pytest.mark.rule("WAI-2")
def test_a_signalled_reply_is_not_slept_over(script: LifeScript) -> None:
    check_life(script, live(script))


@pytest.mark.rule("CAN-7")
def test_a_front_that_stops_leaves_no_abort_of_a_submit_behind() -> None:
    script = LifeScript((Step("leave"), Step("stop")), cancels=("slow",))
    check_life(script, live(script))


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.rule("WAI-2")
def test_a_signal_during_a_status_read_is_not_lost(*, stream: bool) -> None:
    script = LifeScript((Step("start", wait=1.0), Step("finish", wait=0.5, text="Hi.")), stream=stream, reads=("slow",))
    answer = check_life(script, live(script))
    assert answer.text == "Hi."


@pytest.mark.rule("DLT-26")
def test_reasoning_that_was_relayed_is_not_sent_again_with_the_rest() -> None:
    post = Step("post", wait=1.0, text="Hello ", reasoning="hm ")
    script = LifeScript((Step("start", wait=1.0), post, Step("finish", wait=1.0, text="you.", reasoning="so")))
    answer = check_life(script, live(script))
    assert (answer.reasoning, answer.text) == ("hm so", "Hello you.")
