import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.worker.horde_client import ProgressVerdict
from horde.worker.progress import JobCancelledError, ProgressBatcher, ProgressPacing, ProgressPoster
from tests.support.waiting import WaitUntil

FAST = ProgressPacing(interval_seconds=0.01, heartbeat_seconds=0.02)
PATIENT = ProgressPacing(interval_seconds=600, heartbeat_seconds=1200)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text(max_size=30_000)),
        st.tuples(st.just("reasoning"), st.text(max_size=30_000)),
        st.just(("take", "")),
    ),
    max_size=12,
)


class Posts:
    """Takes posts, answers them by a list, and can hold one open."""

    def __init__(self, *verdicts: ProgressVerdict) -> None:
        self.taken: list[tuple[int | None, str, str]] = []
        self.verdicts = deque(verdicts)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.most_waiting = 0

    async def __call__(self, _job_id: str, seq: int | None, text: str, reasoning: str) -> ProgressVerdict:
        self.taken.append((seq, text, reasoning))
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await self.gate.wait()
        self.waiting -= 1
        return self.verdicts.popleft() if self.verdicts else ProgressVerdict.ACCEPTED

    @property
    def texts(self) -> list[tuple[int | None, str, str]]:
        return [post for post in self.taken if post[0] is not None]


@given(STEPS)
def test_batches_joined_are_a_prefix_of_the_reply_and_numbered_without_a_gap(steps: list[tuple[str, str]]) -> None:
    batcher = ProgressBatcher()
    text = reasoning = ""
    batches = []
    for kind, piece in steps:
        if kind == "take":
            if batcher.waiting:
                batches.append(batcher.take())
        elif kind == "text":
            batcher.add(text=piece)
            text += piece
        else:
            batcher.add(reasoning=piece)
            reasoning += piece
    assert text.startswith("".join(batch.text for batch in batches))
    assert reasoning.startswith("".join(batch.reasoning for batch in batches))
    assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
    assert all(batch.text or batch.reasoning for batch in batches)


@given(st.text(min_size=1, max_size=30_000), st.text(max_size=30_000))
def test_a_batch_stays_below_the_hordes_bound_and_everything_leaves_in_the_end(text: str, reasoning: str) -> None:
    batcher = ProgressBatcher()
    batcher.add(text=text, reasoning=reasoning)
    batches = []
    while batcher.waiting:
        batches.append(batcher.take())
    assert all(len(batch.text) + len(batch.reasoning) <= 10_000 for batch in batches)
    assert "".join(batch.reasoning for batch in batches) == reasoning
    assert "".join(batch.text for batch in batches) == text


@pytest.mark.rule("DLT-19")
def test_no_text_leaves_before_the_reasoning_that_came_before_it() -> None:
    batcher = ProgressBatcher()
    batcher.add(text="answer", reasoning="r" * 15_000)
    assert batcher.take().text == ""
    assert batcher.take().text == "answer"


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({"interval_seconds": 1.0, "lease_seconds": 30}, ProgressPacing(interval_seconds=1.0, heartbeat_seconds=3.0)),
        ({"interval_seconds": 2, "lease_seconds": 6}, ProgressPacing(interval_seconds=2.0, heartbeat_seconds=2.0)),
        ({"interval_seconds": 50, "lease_seconds": 30}, ProgressPacing(interval_seconds=10.0, heartbeat_seconds=50.0)),
        ({"interval_seconds": "1", "lease_seconds": True}, ProgressPacing(interval_seconds=1.0, heartbeat_seconds=3.0)),
        ({"interval_seconds": 1e-9}, ProgressPacing(interval_seconds=0.1, heartbeat_seconds=3.0)),
        (None, ProgressPacing(interval_seconds=1.0, heartbeat_seconds=3.0)),
    ],
)
def test_the_pace_is_what_the_pop_says_within_reason(progress: object, expected: ProgressPacing) -> None:
    assert ProgressPacing.from_pop(progress) == expected


@pytest.mark.rule("WRK-1")
async def test_the_first_text_is_posted_at_once_and_the_rest_waits_for_its_time(wait_until: WaitUntil) -> None:
    posts = Posts()
    poster = ProgressPoster("job", posts, PATIENT, live=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(text="The")
        await wait_until(lambda: posts.taken, description="the first post")
        poster.add(text=" sea")
        poster.close()
    assert posts.taken == [(1, "The", "")]


@pytest.mark.rule("WRK-1")
async def test_text_and_reasoning_go_apart_and_in_order(wait_until: WaitUntil) -> None:
    posts = Posts()
    poster = ProgressPoster("job", posts, FAST, live=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(reasoning="hm")
        await wait_until(lambda: posts.texts, description="the first post")
        poster.add(text="The sea")
        await wait_until(lambda: len(posts.texts) == 2, description="the second post")
        poster.close()
    assert posts.texts == [(1, "", "hm"), (2, "The sea", "")]


async def test_there_is_never_more_than_one_post_on_its_way(wait_until: WaitUntil) -> None:
    posts = Posts()
    posts.gate.clear()
    poster = ProgressPoster("job", posts, FAST, live=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(text="a")
        await wait_until(lambda: posts.waiting, description="a post on its way")
        poster.add(text="b")
        posts.gate.set()
        await wait_until(lambda: len(posts.texts) == 2, description="the second post")
        poster.close()
    assert posts.most_waiting == 1


async def test_without_live_text_only_heartbeats_are_posted(wait_until: WaitUntil) -> None:
    posts = Posts()
    poster = ProgressPoster("job", posts, FAST, live=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(text="The sea")
        await wait_until(lambda: len(posts.taken) > 1, description="two heartbeats")
        poster.close()
    assert set(posts.taken) == {(None, "", "")}


@pytest.mark.rule("WRK-5")
async def test_a_cancelled_job_is_learned_of_from_the_answer_to_a_heartbeat() -> None:
    poster = ProgressPoster("job", Posts(ProgressVerdict.CANCELLED), FAST, live=False)
    with pytest.raises(JobCancelledError):
        await poster.run()


async def test_what_a_post_answers_after_the_end_of_the_reply_does_not_matter(wait_until: WaitUntil) -> None:
    posts = Posts(ProgressVerdict.CANCELLED)
    posts.gate.clear()
    poster = ProgressPoster("job", posts, FAST, live=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(text="a")
        await wait_until(lambda: posts.waiting, description="a post on its way")
        poster.close()
        posts.gate.set()
    assert posts.taken == [(1, "a", "")]


async def test_a_post_that_surely_never_arrived_is_sent_again_as_it_was(wait_until: WaitUntil) -> None:
    posts = Posts(ProgressVerdict.NOT_RECEIVED)
    poster = ProgressPoster("job", posts, FAST, live=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(text="a")
        await wait_until(lambda: posts.texts, description="the first post")
        poster.add(text="b")
        await wait_until(lambda: len(posts.texts) == 3, description="the first post again, and the second")
        poster.close()
    assert posts.texts == [(1, "a", ""), (1, "a", ""), (2, "b", "")]


async def test_after_a_post_of_unknown_fate_no_text_is_posted_and_the_job_lives_on(wait_until: WaitUntil) -> None:
    posts = Posts(ProgressVerdict.UNKNOWN)
    poster = ProgressPoster("job", posts, FAST, live=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(poster.run())
        poster.add(text="a")
        await wait_until(lambda: posts.texts, description="the first post")
        poster.add(text="b")
        await wait_until(lambda: len(posts.taken) > 2, description="heartbeats")
        poster.close()
    assert posts.texts == [(1, "a", "")]
