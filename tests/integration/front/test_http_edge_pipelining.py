"""Clients that send more while they are answered, and clients that leave: bytes on real sockets."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from tests.support.front import chat_body
from tests.support.raw_http import Address, RawClient, chat_request, raw_client, served_front
from tests.support.scripted_horde import Answer, ScriptedHorde, scripted_horde, status
from tests.support.waiting import wait_until

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: front\r\n\r\n"
ALIVE = b'{"status":"ok"}'


@pytest.fixture
async def horde() -> AsyncIterator[ScriptedHorde]:
    async with scripted_horde() as server:
        yield server


@pytest.fixture
async def front(horde: ScriptedHorde) -> AsyncIterator[Address]:
    async with served_front(horde, stream_timeout_seconds=60, nonstream_timeout_seconds=60) as address:
        yield address


@pytest.fixture
async def client(front: Address) -> AsyncIterator[RawClient]:
    async with raw_client(front) as connection:
        yield connection


@pytest.fixture
def release(horde: ScriptedHorde) -> asyncio.Event:
    """Set to let the Horde answer the first status read."""
    held = asyncio.Event()
    horde.statuses = [Answer(body=status("replied"), held=held)]
    return held


async def asked(horde: ScriptedHorde) -> None:
    await wait_until(lambda: horde.of("GET", "/status/"), description="the first request to wait")


# The answers


@pytest.mark.parametrize("apart", [False, True])
async def test_requests_sent_ahead_are_answered_in_their_order(
    client: RawClient, horde: ScriptedHorde, release: asyncio.Event, *, apart: bool
) -> None:
    requests = [chat_request(chat_body()), HEALTHZ, b"GET /nowhere HTTP/1.1\r\nHost: front\r\n\r\n", HEALTHZ]
    await client.send(*requests if apart else [b"".join(requests)])
    await asked(horde)
    release.set()
    answers = [await client.answer() for _ in requests]
    assert [answer.status for answer in answers] == [200, 200, 404, 200]
    assert answers[0].body.startswith(b'{"id":"chatcmpl-')
    assert answers[3].body == ALIVE


FORMS = {
    HEALTHZ: 200,
    b"\r\nGET http://front/healthz HTTP/1.1\r\nHost: front\r\n\r\n": 200,
    b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}": 200,
    b"GET /nowhere HTTP/1.1\r\nHost: front\r\n\r\n": 404,
    b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nX-Trailer: a\r\n\r\n": 405,
    chat_request({"model": "m"}): 400,
    chat_request(chat_body(stream=True)): 200,
}
"""Requests of every form, and the status of each."""


@pytest.mark.parametrize("seed", range(8))
async def test_requests_are_the_same_however_their_bytes_are_cut(
    client: RawClient, horde: ScriptedHorde, seed: int
) -> None:
    horde.statuses = [Answer(body=status("replied"))]
    chance = random.Random(seed)  # noqa: S311 - no secret
    requests = chance.choices(list(FORMS), k=14)
    data = b"".join(requests)
    cuts = sorted({0, len(data), *chance.choices(range(len(data)), k=chance.choice([0, 5, 60]))})
    await client.send(*(data[start:end] for start, end in pairwise(cuts)))
    assert [(await client.answer()).status for _ in requests] == [FORMS[request] for request in requests]
    assert len(horde.bodies) == requests.count(chat_request(chat_body(stream=True)))


async def test_a_body_sent_ahead_in_parts_is_whole(
    client: RawClient, horde: ScriptedHorde, release: asyncio.Event
) -> None:
    second = chat_request(chat_body(messages=[{"role": "user", "content": "word " * 4000}]))
    await client.send(chat_request(chat_body()))
    await asked(horde)
    await client.send(second[:5000], second[5000:9000])
    release.set()
    assert (await client.answer()).status == 200
    await client.send(second[9000:])
    assert (await client.answer()).status == 200
    assert horde.bodies[1]["messages"][0]["content"] == "word " * 4000


@pytest.mark.parametrize(
    "behind", [b"\x00nonsense\r\n\r\n", HEALTHZ * 100, HEALTHZ * 5000], ids=["bad", "many", "much"]
)
async def test_what_cannot_be_served_behind_an_answer_does_not_disturb_it(
    client: RawClient, horde: ScriptedHorde, release: asyncio.Event, behind: bytes
) -> None:
    await client.send(chat_request(chat_body()) + behind)
    await asked(horde)
    release.set()
    answer = await client.answer()
    assert answer.status == 200
    assert answer.body.startswith(b'{"id":"chatcmpl-')
    assert await client.is_closed()


async def test_what_a_client_sends_behind_a_waiting_request_is_not_kept_without_bound(
    client: RawClient, horde: ScriptedHorde, release: asyncio.Event
) -> None:
    await client.send(chat_request(chat_body(stream=True)))
    await asked(horde)
    # Far more than the kernel's buffers hold: the front takes it, and throws it away.
    await client.send(*[b"x" * 65536] * 400)
    release.set()
    answer = await client.answer()
    assert answer.status == 200
    assert b"data: [DONE]\n\n" in answer.body
    assert await client.is_closed()


# Leaving


@pytest.mark.rule("CAN-1", "CAN-2")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behind", [b"", HEALTHZ, chat_request(chat_body()), b"GET /heal", b"x" * 200_000])
async def test_a_client_that_leaves_is_noticed_whatever_it_sent_ahead(
    client: RawClient, horde: ScriptedHorde, behind: bytes, *, stream: bool
) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    await client.send(chat_request(chat_body(stream=stream)) + behind)
    await asked(horde)
    client.leave()
    await wait_until(lambda: horde.cancelled, description="the request to be cancelled")
    assert len(horde.bodies) == 1, "a request that nobody waits for any more is not begun"


@pytest.mark.rule("CAN-1", "CAN-2", "ADM-3")
async def test_leaving_is_seen_without_a_status_read(horde: ScriptedHorde) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    async with served_front(horde, poll_seconds=3600.0, max_inflight=1) as front:
        async with raw_client(front) as client:
            await client.send(chat_request(chat_body(stream=True)))
            assert (await client.head()).status == 200
        await wait_until(lambda: horde.cancelled, description="the request to be cancelled")
        assert len(horde.of("GET", "/status/")) == 1
        horde.restart([Answer(body=status("replied"))])
        async with raw_client(front) as client:
            await client.send(chat_request(chat_body()))
            assert (await client.answer()).status == 200, "its slot is free again"


async def test_a_client_that_closes_its_side_alone_counts_as_gone(client: RawClient, horde: ScriptedHorde) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    await client.send(chat_request(chat_body()))
    await asked(horde)
    client.end()
    await wait_until(lambda: horde.cancelled, description="the request to be cancelled")


@pytest.mark.rule("CAN-1", "CAN-2")
async def test_a_client_whose_connection_is_reset_counts_as_gone(client: RawClient, horde: ScriptedHorde) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    await client.send(chat_request(chat_body()))
    await asked(horde)
    client.reset()
    await wait_until(lambda: horde.cancelled, description="the request to be cancelled")


@pytest.mark.parametrize("how", [RawClient.leave, RawClient.reset])
async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(
    client: RawClient, horde: ScriptedHorde, front: Address, how: Callable[[RawClient], None]
) -> None:
    await client.send(chat_request(chat_body())[:-5])
    how(client)
    async with raw_client(front) as other:
        await other.send(HEALTHZ)
        assert (await other.answer()).body == ALIVE
    assert horde.bodies == []
