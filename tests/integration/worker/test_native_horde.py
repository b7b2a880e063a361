"""Worker, native Horde, PostgreSQL, Valkey and llama.cpp: nothing scripted."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import redis.asyncio

from horde.chat_contract import chat_stream_key
from tests.support.native_server import Caller, NativeServer, running_native
from tests.support.waiting import WaitUntil
from tests.support.working import WORKER_KEY, working

MODEL = "SmolLM2-135M-Instruct"
_SECONDS = 60.0


@pytest.fixture
async def native(migrated_database_url: str, redis_url: str) -> AsyncIterator[NativeServer]:
    async with running_native(migrated_database_url, redis_url) as server:
        yield server


async def make_owner(native: NativeServer) -> None:
    # Imported here as the Horde's own module; the worker itself knows it over HTTP only.
    from horde.native.users import ensure_user  # noqa: PLC0415 - see above

    await ensure_user(native.pool, "worker owner", WORKER_KEY)


async def online(native: NativeServer, wait_until: WaitUntil) -> None:
    async def is_listed() -> bool:
        models = (await native.caller().call("GET", "/v2/status/models?type=text")).body
        return any(model["name"] == MODEL and model["chat"] for model in models)

    await wait_until(is_listed, description="the worker to be online", seconds=_SECONDS)


async def done(caller: Caller, request_id: str, wait_until: WaitUntil) -> dict[str, Any]:
    async def is_done() -> bool:
        return bool((await caller.status(request_id))["done"])

    await wait_until(is_done, description="the request to be done", seconds=_SECONDS)
    return await caller.status(request_id)


@pytest.mark.rule("WRK-1", "WRK-7")
async def test_a_streamed_request_is_served_live_and_whole(
    native: NativeServer, real_model_url: str, redis_url: str, wait_until: WaitUntil
) -> None:
    await make_owner(native)
    client = await native.user("client", kudos=100)
    async with working(native.base_url, real_model_url), redis.asyncio.from_url(redis_url) as streams:
        await online(native, wait_until)
        messages = [{"role": "user", "content": "Write a long story about the sea."}]
        request_id = await client.submit_id(models=[MODEL], messages=messages, params={"max_length": 80}, stream=True)
        status = await done(client, request_id, wait_until)
        found = await streams.xrange(chat_stream_key(request_id))
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", found)
    assert not status["faulted"]
    generation = status["generations"][0]
    relayed = "".join(entry[b"text"].decode() for _, entry in entries)
    assert relayed
    assert generation["message"]["content"].startswith(relayed)
    assert generation["completion_tokens"] <= 80
    assert [entry[b"seq"] for _, entry in entries] == [str(number + 1).encode() for number in range(len(entries))]


@pytest.mark.rule("WRK-4", "CNF-5")
async def test_a_prompt_that_only_the_tokenizer_finds_too_long_faults_the_request(
    native: NativeServer, real_model_url: str, wait_until: WaitUntil
) -> None:
    await make_owner(native)
    client = await native.user("client", kudos=100)
    async with working(native.base_url, real_model_url):
        await online(native, wait_until)
        # The Horde estimates four characters a token; digits take one each.
        messages = [{"role": "user", "content": "1234567890" * 300}]
        request_id = await client.submit_id(models=[MODEL], messages=messages, params={"max_length": 16})
        status = await done(client, request_id, wait_until)
    assert status["faulted"]
    assert status["fault"]["rc"] == "ChatWorkerFault"


@pytest.mark.rule("WRK-5")
async def test_cancelling_a_request_frees_the_model_and_the_worker_serves_on(
    native: NativeServer, real_model_url: str, wait_until: WaitUntil
) -> None:
    await make_owner(native)
    client = await native.user("client", kudos=100)
    story = [{"role": "user", "content": "Write a long story about the sea."}]
    async with working(native.base_url, real_model_url, threads=1):
        await online(native, wait_until)
        first = await client.submit_id(models=[MODEL], messages=story, params={"max_length": 512}, stream=True)

        async def is_processing() -> bool:
            return bool((await client.status(first))["processing"])

        await wait_until(is_processing, description="the first request to be generated", seconds=_SECONDS)
        await client.cancel(first)
        second = await client.submit_id(models=[MODEL], messages=story, params={"max_length": 16})
        status = await done(client, second, wait_until)
    assert not status["faulted"]


async def test_a_worker_that_stops_is_offline_at_once(
    native: NativeServer, real_model_url: str, wait_until: WaitUntil
) -> None:
    await make_owner(native)
    client = await native.user("client", kudos=100)
    async with working(native.base_url, real_model_url):
        await online(native, wait_until)
    answer = await client.submit(models=[MODEL])
    assert (answer.status, answer.rc) == (503, "NoOnlineChatWorker")
