"""The whole chain while its stream store fails: replies arrive, streams are completed, nobody is busy for nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from tests.support.native_server import MODEL, Caller, running_native
from tests.support.redis_proxy import RedisProxy, redis_proxy
from tests.support.serving import serving
from tests.support.valkey import StreamStoreForTests
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


type Outage = Callable[[Stack, StreamStoreForTests], AbstractContextManager[None]]


@asynccontextmanager
async def stack(database_url: str, redis_url: str) -> AsyncIterator[Stack]:
    async with redis_proxy(redis_url) as proxy, running_native(database_url, redis_url) as native:
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
            yield Stack(client, worker, proxy)


@contextmanager
def black_hole(stack: Stack, _store: StreamStoreForTests) -> Iterator[None]:
    with stack.proxy.black_hole():
        yield


@contextmanager
def killed(stack: Stack, _store: StreamStoreForTests) -> Iterator[None]:
    with stack.proxy.down():
        yield


@contextmanager
def paused(_stack: Stack, store: StreamStoreForTests) -> Iterator[None]:
    os.kill(store.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(store.pid, signal.SIGCONT)


@contextmanager
def flushed(_stack: Stack, store: StreamStoreForTests) -> Iterator[None]:
    store.empty()
    yield


def text_of(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


@pytest.mark.rule("DLT-14", "DLT-26", "DLT-9", "DLT-11", "WAI-2")
@pytest.mark.parametrize("outage", [black_hole, killed, paused, flushed])
async def test_streams_are_completed_and_replies_come_whole_while_the_stream_store_fails(
    migrated_database_url: str, redis_url: str, stream_store: StreamStoreForTests, outage: Outage
) -> None:
    async with stack(migrated_database_url, redis_url) as parts, asyncio.TaskGroup() as group:
        ask, worker = parts.client.chat.completions.create, parts.worker
        stream = await ask(model=MODEL, messages=QUESTION, stream=True)
        job = await worker.pop_job(wait_seconds=10)
        await worker.progress(job["id"], 1, "Once upon ")
        chunks = aiter(stream)
        received = ""
        while received != "Once upon ":
            received += text_of(await anext(chunks))
        connections, reads = parts.proxy.connections, parts.proxy.read_count
        with outage(parts, stream_store):
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


async def test_after_an_outage_text_is_live_again(migrated_database_url: str, redis_url: str) -> None:
    async with stack(migrated_database_url, redis_url) as parts:
        with parts.proxy.down():
            before = parts.proxy.connections
            await wait_until(lambda: parts.proxy.connections > before, description="an attempt to connect", seconds=30)
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
