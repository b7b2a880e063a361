"""What the shipped configurations of HAProxy and nginx do with real fronts; `make test-proxies` runs it.

Not part of the suite, which must run where neither is installed.
"""

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from redis.asyncio import Redis

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, chat_stream_key
from tests.support.front import chat_body
from tests.support.replicas import PROXIES, Replica, Replicas, running_replicas
from tests.support.scripted_horde import MODEL, Answer, ScriptedHorde, generation, scripted_horde, status
from tests.support.waiting import wait_until

GEN = "11111111-1111-4111-8111-111111111111"
WORKER = "22222222-2222-4222-8222-222222222222"
CHAT = "/v1/chat/completions"
LONGEST_HEAD_OR_BODY_SECONDS = 15

type Start = Callable[..., AbstractAsyncContextManager[Replicas]]


@pytest.fixture
async def horde() -> AsyncIterator[ScriptedHorde]:
    async with scripted_horde() as server:
        yield server


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)) as client:
        yield client


@pytest.fixture(params=list(PROXIES))
def start(request: pytest.FixtureRequest, horde: ScriptedHorde, tmp_path: Path, redis_url: str) -> Start:
    @asynccontextmanager
    async def start(**settings: object) -> AsyncIterator[Replicas]:
        quick = {"redis_url": redis_url, "signalled_poll_seconds": 0.05, "keepalive_seconds": 0.1, **settings}
        variables = {f"HORDE_OAI_{name.upper()}": str(value) for name, value in quick.items()}
        async with running_replicas(request.param, horde, tmp_path, variables) as replicas:
            yield replicas

    return start


async def read_until(response: aiohttp.ClientResponse, text: bytes) -> bytes:
    """Read until a text came, and return all that was read."""
    read = b""
    async with asyncio.timeout(30):
        while text not in read:
            part = await response.content.readany()
            assert part, f"the stream ended without {text!r}: {read!r}"
            read += part
    return read


async def finish(redis: Redis, horde: ScriptedHorde, request_id: str, text: str) -> None:
    """Let a request end with a reply."""
    horde.restart([Answer(body=status("replied", generation(text, id=GEN)))])
    await redis.publish(CHAT_SIGNALS_CHANNEL, orjson.dumps({"id": request_id, "event": "finished"}))


# Streams


async def test_each_chunk_comes_as_it_is_sent(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession, redis_url: str
) -> None:
    horde.statuses = [Answer(body=status("processing"))]
    redis = Redis.from_url(redis_url)
    async with (
        start(keepalive_seconds=60, pace_streams="false") as replicas,
        session.post(replicas.url + CHAT, json=chat_body(stream=True)) as response,
    ):
        (request_id,) = horde.ids.values()
        for seq, word in enumerate(["one ", "two ", "three "], 1):
            entry = {"gen": GEN, "seq": seq, "text": word, "worker": WORKER, "model": MODEL}
            await redis.xadd(chat_stream_key(request_id), entry)  # type: ignore[arg-type] # dict is invariant
            # The next is written only when this one has been read at the client.
            await read_until(response, word.encode())
        await redis.expire(chat_stream_key(request_id), 60)
        await finish(redis, horde, request_id, "one two three ")
        await read_until(response, b"data: [DONE]")
    await redis.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wait_longer_than_every_other_time_limit_is_borne(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession, *, stream: bool
) -> None:
    held = asyncio.Event()
    horde.statuses = [Answer(body=status("queued")), Answer(body=status("replied"), held=held)]
    async with start(keepalive_seconds=5, call_timeout_seconds=60) as replicas:
        asyncio.get_running_loop().call_later(LONGEST_HEAD_OR_BODY_SECONDS + 7, held.set)
        async with session.post(replicas.url + CHAT, json=chat_body(stream=stream)) as response:
            text = await response.text()
    assert response.status == 200, text
    assert text.endswith("data: [DONE]\n\n" if stream else "}")
    if stream:
        assert text.count(": horde queue_position=") >= 3, "a comment every 5 seconds"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_has_its_request_cancelled(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession, *, stream: bool
) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    async with start() as replicas:
        request = asyncio.create_task(session.post(replicas.url + CHAT, json=chat_body(stream=stream)))
        await wait_until(lambda: horde.of("GET", "/status/"), description="the request to wait")
        if stream:
            response = await request
            await read_until(response, b": horde")
            response.close()
        else:
            request.cancel()
        await wait_until(lambda: horde.cancelled, description="the request to be cancelled", seconds=20)
    assert len(horde.bodies) == 1


# Sending a request once


async def test_a_front_that_dies_with_a_request_does_not_get_it_sent_again(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession
) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    async with start() as replicas:
        request = asyncio.create_task(session.post(replicas.url + CHAT, json=chat_body()))
        await wait_until(lambda: horde.of("GET", "/status/"), description="the request to wait")
        replicas.serving().process.kill()
        async with await request as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (502, "FrontUnavailable")
        assert response.headers["x-should-retry"] == "false", "an SDK would send it again"
        horde.restart([Answer(body=status("replied"))])
        async with session.post(replicas.url + CHAT, json=chat_body()) as response:
            assert response.status == 200
    assert len(horde.bodies) == 2
    assert len({body["operation_key"] for body in horde.bodies}) == 2


async def test_a_stream_whose_front_dies_is_seen_to_be_cut(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession
) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    async with start() as replicas, session.post(replicas.url + CHAT, json=chat_body(stream=True)) as response:
        await read_until(response, b": horde")
        replicas.serving().process.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert len(horde.bodies) == 1


async def test_a_front_that_is_gone_costs_no_request(start: Start, session: aiohttp.ClientSession) -> None:
    async with start() as replicas:
        gone, left = replicas.fronts
        gone.process.kill()
        await gone.process.wait()
        for _ in range(10):
            async with session.post(replicas.url + CHAT, json=chat_body()) as response:
                assert response.status == 200
        assert (replicas.submits(gone), replicas.submits(left)) == (0, 10)


async def test_without_any_front_a_client_is_told_to_come_back(start: Start, session: aiohttp.ClientSession) -> None:
    async with start() as replicas:
        for front in replicas.fronts:
            front.process.kill()
            await front.process.wait()
        async with session.post(replicas.url + CHAT, json=chat_body()) as response:
            error = (await response.json())["error"]
    assert (response.status in {502, 503}, error["code"]) == (True, "FrontUnavailable")
    assert "x-should-retry" not in response.headers, "nothing was queued, so it may be sent again"


# Stopping a front


async def test_draining_a_front_loses_nothing(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession
) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    async with start() as replicas:
        async with session.post(replicas.url + CHAT, json=chat_body(stream=True)) as early:
            draining = replicas.serving()
            horde.restart([Answer(body=status("replied"))])
            # The early request goes on waiting, by its id.
            horde.hold_requests(horde.ids.values())
            draining.process.terminate()
            outcomes = await keep_asking(session, replicas, draining)
            horde.hold_requests(())
            await read_until(early, b"data: [DONE]")
        assert await draining.process.wait() == 0
    assert set(outcomes) == {200}
    assert len(horde.bodies) == len(outcomes) + 1, "each request was submitted once"


async def keep_asking(session: aiohttp.ClientSession, replicas: Replicas, draining: Replica) -> list[int]:
    """Send requests from eight clients until a front has closed its listener and 50 more are answered."""
    outcomes: list[int] = []
    closed_at = 0

    async def ask() -> None:
        while not closed_at or len(outcomes) < closed_at + 50:
            async with session.post(replicas.url + CHAT, json=chat_body(stream=len(outcomes) % 2 == 0)) as response:
                await response.read()
                outcomes.append(response.status)

    async def is_closed() -> bool:
        try:
            async with session.get(f"http://127.0.0.1:{draining.port}/healthz", headers={"Connection": "close"}):
                return False
        except aiohttp.ClientConnectionError:
            return True

    clients = [asyncio.create_task(ask()) for _ in range(8)]
    await wait_until(is_closed, description="the front to close its listener", seconds=30, interval_seconds=0.05)
    closed_at = len(outcomes)
    await asyncio.gather(*clients)
    return outcomes


async def test_a_front_that_drains_gets_no_new_request_while_it_still_listens(
    start: Start, session: aiohttp.ClientSession, request: pytest.FixtureRequest
) -> None:
    if "nginx" in request.node.name:
        pytest.skip("nginx has no health checks of its own: it learns of it when a connection is refused")
    async with start(drain_accept_seconds=30) as replicas:
        draining, other = replicas.fronts
        draining.process.terminate()

        async def is_passed_over() -> bool:
            before = replicas.submits(other)
            for _ in range(4):
                async with session.post(replicas.url + CHAT, json=chat_body()) as response:
                    assert response.status == 200
            return replicas.submits(other) == before + 4

        await wait_until(is_passed_over, description="the draining front to be passed over", seconds=3)
        async with session.get(f"http://127.0.0.1:{draining.port}/readyz") as response:
            assert await response.json() == {"status": "draining"}


# What passes


async def test_a_body_of_many_images_passes_as_it_is(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession
) -> None:
    image = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 5000).decode()
    parts = [{"type": "image_url", "image_url": {"url": image}}] * 8
    body = chat_body(messages=[{"role": "user", "content": [{"type": "text", "text": "Compare."}, *parts]}])
    assert len(orjson.dumps(body)) > 13 * 2**20
    async with start() as replicas, session.post(replicas.url + CHAT, data=in_parts(body)) as response:
        assert response.status == 200, await response.text()
    assert horde.bodies[0]["messages"] == body["messages"]


async def test_a_body_that_is_too_large_gets_the_fronts_own_answer(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession
) -> None:
    body = in_parts(chat_body(user="x" * 17 * 2**20))
    async with start() as replicas, session.post(replicas.url + CHAT, data=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (413, "RequestTooLarge")
    assert horde.bodies == []


def in_parts(body: dict[str, Any]) -> io.BytesIO:
    """Return a body that is sent in parts, its length declared."""
    return io.BytesIO(orjson.dumps(body))


async def test_heads_have_the_fronts_bounds_and_answers(start: Start, session: aiohttp.ClientSession) -> None:
    async with start() as replicas:
        url = replicas.url + "/v1/models"
        async with session.get(url, headers={"X-Long": "a" * 30_000}) as response:
            assert response.status == 200, await response.text()
        async with session.get(url, headers={f"X-Long-{at}": "a" * 8000 for at in range(5)}) as response:
            assert (response.status, await code_of(response)) == (431, "RequestHeadersTooLarge")
        async with session.get(f"{url}?a={'a' * 9000}") as response:
            assert (response.status, await code_of(response)) == (414, "RequestUrlTooLong")


async def test_what_nginx_itself_refuses_is_in_the_envelope_too(
    start: Start, horde: ScriptedHorde, session: aiohttp.ClientSession, request: pytest.FixtureRequest
) -> None:
    if "haproxy" in request.node.name:
        pytest.skip("HAProxy takes no other form for what is no HTTP, and has no bound of bodies")
    async with start() as replicas:
        headers = {f"X-Long-{at}": "a" * 8000 for at in range(30)}
        async with session.get(replicas.url + "/v1/models", headers=headers) as response:
            assert (response.status, await code_of(response)) == (400, "BadRequest")
        async with session.post(replicas.url + CHAT, data=in_parts(chat_body(user="x" * 80 * 2**20))) as response:
            assert (response.status, await code_of(response)) == (413, "RequestTooLarge")
    assert horde.bodies == []


async def code_of(response: aiohttp.ClientResponse) -> str:
    """Return the code of an error."""
    code: str = (await response.json())["error"]["code"]
    return code


def client_at(address: str) -> aiohttp.ClientSession:
    """Return a client that calls from another address of this machine."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(address, 0)))


async def test_a_front_knows_the_clients_address_whatever_the_client_says(start: Start, horde: ScriptedHorde) -> None:
    async with start() as replicas, client_at("127.0.0.2") as client:
        lie = {"X-Forwarded-For": "203.0.113.9, 127.0.0.1"}
        async with client.post(replicas.url + CHAT, json=chat_body(), headers=lie) as response:
            assert response.status == 200
    (submit,) = horde.of("POST", "/generate/chat")
    assert submit.headers["x-forwarded-for"] == "127.0.0.2"


async def test_the_slots_of_one_client_are_not_those_of_another(start: Start, horde: ScriptedHorde) -> None:
    horde.statuses = [Answer(body=status("queued"))]
    body = chat_body(stream=True)
    async with (
        start(max_inflight_per_source=1) as replicas,
        client_at("127.0.0.2") as one,
        client_at("127.0.0.3") as two,
    ):
        taken = [await one.post(replicas.url + CHAT, json=body) for _ in replicas.fronts]
        assert [response.status for response in taken] == [200, 200], "the proxy chose each front once"
        async with one.post(replicas.url + CHAT, json=body) as response:
            assert (response.status, await code_of(response)) == (503, "FrontAtCapacity")
        async with two.post(replicas.url + CHAT, json=body) as response:
            assert response.status == 200
        for response in taken:
            response.close()
