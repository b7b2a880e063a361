import pytest

from tests.support.native_server import running_native

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
