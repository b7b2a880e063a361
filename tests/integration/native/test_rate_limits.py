import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import openai
import pytest

from horde.native.settings import SettingsError, load_settings
from horde.oai.app import create_app
from horde.oai.settings import FrontSettings
from tests.support.native_server import MODEL, Answer, running_native
from tests.support.serving import serving

_UNREACHABLE = "redis://127.0.0.1:1/0"


@pytest.mark.rule("NAT-15")
async def test_processes_count_a_key_together_and_a_refusal_says_how_long_to_wait(
    migrated_database_url: str, redis_url: str
) -> None:
    async with (
        running_native(migrated_database_url, redis_url, user_submits_per_minute=2) as first,
        running_native(migrated_database_url, redis_url, user_submits_per_minute=2) as second,
    ):
        client = await first.user("client")
        other = second.caller(client.api_key)
        assert (await client.submit()).rc == "UnknownChatModel"
        assert (await other.submit()).rc == "UnknownChatModel"

        refused = await client.submit()

        assert (refused.status, refused.rc) == (429, "TooManyPrompts")
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert (refused.headers["x-ratelimit-limit"], refused.headers["x-ratelimit-remaining"]) == ("2", "0")
        assert 1 <= int(refused.headers["x-ratelimit-reset"]) <= 60
        assert (await (await first.user("another")).submit()).rc == "UnknownChatModel"


@pytest.mark.rule("NAT-15")
@pytest.mark.parametrize("url", [None, _UNREACHABLE])
async def test_a_process_without_redis_counts_for_itself(migrated_database_url: str, url: str | None) -> None:
    async with running_native(migrated_database_url, url, user_submits_per_minute=1) as native:
        client = await native.user("client")
        assert (await client.submit()).rc == "UnknownChatModel"
        assert (await client.submit()).rc == "TooManyPrompts"


@pytest.mark.rule("NAT-15")
@pytest.mark.parametrize(("fronts", "code"), [(("127.0.0.1",), "UnknownChatModel"), ((), "TooManyPrompts")])
async def test_the_clients_of_a_trusted_front_are_counted_apart(
    migrated_database_url: str, redis_url: str, fronts: tuple[str, ...], code: str
) -> None:
    limits = {"anonymous_submits_per_minute": 1, "trusted_fronts": fronts}
    async with running_native(migrated_database_url, redis_url, **limits) as native:
        path, body = "/v2/generate/chat", {"messages": [{"role": "user", "content": "Hi"}], "models": ["none"]}
        first = {"X-Forwarded-For": "198.51.100.1"}
        second = {"X-Forwarded-For": "198.51.100.2"}

        assert (await native.caller().call("POST", path, body, **first)).rc == "UnknownChatModel"
        assert (await native.caller().call("POST", path, body, **second)).rc == code
        assert (await native.caller().call("POST", path, body, **first)).rc == "TooManyPrompts"


async def _until_refused(call: Callable[[], Awaitable[Answer]], most: int = 200) -> tuple[int, Answer]:
    """Call until the limit refuses; return how many calls it let through, and the refusal."""
    for count in range(most):
        answer = await call()
        if answer.status == 429:
            return count, answer
    raise AssertionError(f"none of {most} calls was refused")


@pytest.mark.rule("NAT-15")
async def test_reads_and_cancels_have_limits_of_their_own(migrated_database_url: str, redis_url: str) -> None:
    limits = {"user_submits_per_minute": 1, "user_reads_per_minute": 3, "user_cancels_per_minute": 2}
    async with running_native(migrated_database_url, redis_url, **limits) as native:
        owner, client = await native.user("owner"), await native.user("client")
        await owner.come_online()
        request_id = await client.submit_id()

        read, refused = await _until_refused(lambda: client.call("GET", f"/v2/generate/chat/status/{request_id}"))
        assert (read, refused.rc, refused.headers["x-ratelimit-limit"]) == (3, "TooManyPrompts", "3")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await client.call("GET", "/v2/find_user")).status == 429
        assert (await client.cancel(request_id)).status == 200
        assert (await client.cancel_operation(uuid4())).status == 200
        assert (await client.cancel(request_id)).status == 429
        assert (await client.submit()).status == 429
        assert (await owner.call("GET", "/v2/find_user")).status == 200


@pytest.mark.rule("NAT-15")
@pytest.mark.parametrize(
    "path", ["/v2/status/models", "/v2/workers", "/v2/status/performance", f"/v2/workers/{UUID(int=1)}"]
)
async def test_reads_without_a_key_count_for_their_address(migrated_database_url: str, path: str) -> None:
    async with running_native(migrated_database_url, anonymous_reads_per_minute=2, user_reads_per_minute=1) as native:
        client = await native.user("client")
        assert (await _until_refused(lambda: client.call("GET", path)))[0] == 2
        assert (await native.caller().call("GET", "/v2/find_user")).status == 429
        assert (await native.caller().call("GET", "/v2/status/heartbeat")).status == 200


@pytest.mark.rule("NAT-15")
@pytest.mark.parametrize("shared", [True, False])
async def test_a_worker_is_limited_in_what_brings_nothing_alone(
    migrated_database_url: str, redis_url: str, *, shared: bool
) -> None:
    limits = {"worker_empty_pops_per_minute": 120, "user_lost_posts_per_minute": 120}
    url = redis_url if shared else None
    async with running_native(migrated_database_url, url, **limits) as native:
        owner = await native.user("owner")
        client = await native.user("client", kudos=10_000)
        await owner.come_online()
        job: dict[str, Any] = {}
        for _ in range(125):
            await client.submit_id(stream=True)
            job = await owner.pop_job()
            assert (await owner.progress(job["id"], 1, "text")).body == {"cancelled": False}
            assert (await owner.reply(job, "text")).status == 200

        pops, _ = await _until_refused(owner.pop)
        assert pops >= 110
        assert (await owner.pop(name="another worker")).status == 200
        posts, _ = await _until_refused(lambda: owner.progress(job["id"]))
        assert posts >= 119
        assert (await owner.reply(job)).status == 429


@pytest.mark.parametrize("name", ["WORKER_EMPTY_POPS_PER_MINUTE", "USER_LOST_POSTS_PER_MINUTE"])
def test_no_limit_is_below_what_one_worker_needs(name: str) -> None:
    environment = {"HORDE_NATIVE_DATABASE_URL": "postgresql://x", f"HORDE_NATIVE_{name}": "119"}
    with pytest.raises(SettingsError, match=f"HORDE_NATIVE_{name} is wrong.*120 a minute"):
        load_settings(environment)


async def test_a_client_gets_its_reply_though_the_front_reads_more_than_the_limit_allows(
    migrated_database_url: str, redis_url: str
) -> None:
    async with running_native(migrated_database_url, redis_url, user_reads_per_minute=60) as native:
        owner, user = await native.user("owner"), await native.user("client")
        assert user.api_key is not None
        await owner.come_online()
        await _until_refused(lambda: user.call("GET", "/v2/find_user"))
        front = FrontSettings(horde_urls=(native.api_url,), redis_url=redis_url, drain_accept_seconds=0)
        async with (
            serving(create_app(front)) as address,
            openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=user.api_key, max_retries=0) as client,
            asyncio.TaskGroup() as group,
        ):
            asked = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
            completion = group.create_task(asked, name="test - a completion")
            await owner.reply((await owner.pop(wait_seconds=20)).body)
            assert (await completion).choices[0].message.content == "A reply."
