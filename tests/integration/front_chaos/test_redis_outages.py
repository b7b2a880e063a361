"""The whole chain while its stream store fails: replies arrive, streams are completed, nobody is busy for nothing."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from redis.asyncio import Redis

from horde.local.ports import reserved_port
from horde.local.valkey import LocalValkey
from horde.oai import open_requests, signals
from horde.oai.app import create_app
from horde.oai.deltas import DeltaStreamReader
from horde.oai.settings import FrontSettings
from horde.oai.signals import CompletionSignalListener
from tests.support.native_server import MODEL, Caller, running_native
from tests.support.redis_proxy import RedisProxy, redis_proxy
from tests.support.serving import serving
from tests.support.waiting import wait_until

QUESTION: list[Any] = [{"role": "user", "content": "Hi"}]
SECRET = "a secret that all fronts share"
MAX_CONNECTIONS = 60
MAX_READS = 500


@dataclass(frozen=True, slots=True)
class Stack:
    """A front that reaches the stream store through a proxy."""

    client: openai.AsyncOpenAI
    worker: Caller
    proxy: RedisProxy
    store: LocalValkey


type Outage = Callable[[Stack], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def stack(database_url: str, store: LocalValkey) -> AsyncIterator[Stack]:
    async with redis_proxy(store.url) as proxy, running_native(database_url, store.url) as native:
        settings = FrontSettings(
            horde_urls=(native.api_url,),
            redis_url=proxy.url,
            open_requests_secret=SECRET,
            drain_accept_seconds=0,
            poll_seconds=0.2,
            signalled_poll_seconds=1,
        )
        user, worker = await native.user("a user", kudos=1000), await native.user("a worker's owner")
        await worker.come_online()
        async with (
            serving(create_app(settings)) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=user.api_key or "", max_retries=0) as client,
        ):
            yield Stack(client, worker, proxy, store)


@asynccontextmanager
async def black_hole(stack: Stack) -> AsyncIterator[None]:
    with stack.proxy.black_hole():
        yield


@asynccontextmanager
async def unreachable(stack: Stack) -> AsyncIterator[None]:
    with stack.proxy.down():
        yield


@asynccontextmanager
async def paused(stack: Stack) -> AsyncIterator[None]:
    stack.store.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        stack.store.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def paused_until_it_is_given_up(stack: Stack) -> AsyncIterator[None]:
    before = stack.proxy.connections
    async with paused(stack):
        # The three that stood, and at least another one: every limit has run out.
        await wait_until(lambda: stack.proxy.connections >= before + 4, description="attempts to connect")
        yield


@asynccontextmanager
async def killed(stack: Stack) -> AsyncIterator[None]:
    await kill(stack.store)
    with reserved_port(urlsplit(stack.store.url).port or 0):
        yield
        await stack.store.start()


@asynccontextmanager
async def restarted(stack: Stack) -> AsyncIterator[None]:
    await kill(stack.store)
    await stack.store.start()
    yield


@asynccontextmanager
async def flushed(stack: Stack) -> AsyncIterator[None]:
    async with Redis.from_url(stack.store.url) as client:
        await client.flushall()
    yield


async def kill(store: LocalValkey) -> None:
    store.process.send_signal(signal.SIGKILL)
    await store.process.wait()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalValkey]:
    """A stream store that a test may kill."""
    async with LocalValkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the front notice within a second what it else notices within ten."""
    for part, limits in (
        (CompletionSignalListener, {"ping_seconds": 0.2, "ping_answer_seconds": 0.3}),
        (DeltaStreamReader, {"read_timeout_seconds": 0.5, "read_pause_seconds": 0.2}),
    ):
        defaults = part.__init__.__kwdefaults__
        assert defaults is not None
        for name, seconds in limits.items():
            monkeypatch.setitem(defaults, name, seconds)
    for module in (signals, open_requests):
        monkeypatch.setattr(module, "_LIMIT_SECONDS", 0.5)


def text_of(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


@pytest.mark.rule("DLT-14", "DLT-26", "DLT-9", "DLT-11", "WAI-2")
@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    "outage", [black_hole, unreachable, paused, paused_until_it_is_given_up, killed, restarted, flushed]
)
async def test_streams_are_completed_and_replies_come_whole_while_the_stream_store_fails(
    migrated_database_url: str, store: LocalValkey, outage: Outage
) -> None:
    async with stack(migrated_database_url, store) as parts, asyncio.TaskGroup() as group:
        ask, worker = parts.client.chat.completions.create, parts.worker
        stream = await ask(model=MODEL, messages=QUESTION, stream=True)
        job = await worker.pop_job(wait_seconds=10)
        await worker.progress(job["id"], 1, "Once upon ")
        chunks = aiter(stream)
        received = ""
        while received != "Once upon ":
            received += text_of(await anext(chunks))
        connections, reads = parts.proxy.connections, parts.proxy.read_count
        async with outage(parts):
            whole = group.create_task(ask(model=MODEL, messages=QUESTION))
            other = await worker.pop_job(wait_seconds=20)
            await worker.progress(job["id"], 2, "a time ")
            assert (await worker.reply(other, "Whole.")).status == 200
            assert (await worker.reply(job, "Once upon a time there was.")).status == 200
            rest = [chunk async for chunk in chunks]
            assert received + "".join(map(text_of, rest)) == "Once upon a time there was."
            assert rest[-1].choices[0].finish_reason == "stop"
            assert (await whole).choices[0].message.content == "Whole."
        # Pauses between attempts grow or are seconds long: a busy loop would make thousands.
        assert parts.proxy.connections - connections < MAX_CONNECTIONS
        assert parts.proxy.read_count - reads < MAX_READS


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("outage", [unreachable, paused_until_it_is_given_up, killed])
async def test_after_an_outage_text_is_live_again(
    migrated_database_url: str, store: LocalValkey, outage: Outage
) -> None:
    async with stack(migrated_database_url, store) as parts:
        async with outage(parts):
            before = parts.proxy.connections
            await wait_until(lambda: parts.proxy.connections > before, description="an attempt to connect")
        stream = await parts.client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        job = await parts.worker.pop_job(wait_seconds=10)
        await parts.worker.progress(job["id"], 1, "Live ")
        chunks = aiter(stream)
        received = ""
        while received != "Live ":
            received += text_of(await anext(chunks))
        await parts.worker.reply(job, "Live again.")
        rest = [chunk async for chunk in chunks]
    assert received + "".join(map(text_of, rest)) == "Live again."
