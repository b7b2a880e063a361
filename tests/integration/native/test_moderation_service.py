import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loguru import logger
from pydantic import SecretStr

from horde.native.moderation import ModerationUnavailableError
from horde.native.moderation_service import ModerationService
from horde.native.settings import SettingsError, load_settings
from tests.support.moderation_server import ModerationServer, serving_moderation
from tests.support.native_server import running_native

_TEXTS = ["Hello", "Some forbidden text"]
_KEY = "a key of the service"


@pytest.fixture
async def server() -> AsyncIterator[ModerationServer]:
    """A moderation service."""
    async with serving_moderation() as served:
        yield served


def _tool(text: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": text, "parameters": {"type": "object"}}}


@pytest.mark.rule("NAT-17")
async def test_a_prompt_that_the_service_flags_is_refused(migrated_database_url: str, server: ModerationServer) -> None:
    chosen: dict[str, Any] = {
        "moderation_url": server.url,
        "moderation_api_key": SecretStr(_KEY),
        "moderation_model": "small",
    }
    async with running_native(migrated_database_url, **chosen) as native:
        client = await native.user("client")
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "forbidden"}'}}
        question = {"role": "user", "content": "Hi"}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        for refused in (
            {"messages": [question, {"role": "user", "content": [{"type": "text", "text": "forbidden"}]}]},
            {"messages": [question, called, {"role": "tool", "tool_call_id": "1", "content": "fine"}]},
            {"tools": [_tool("forbidden")]},
        ):
            answer = await client.submit(**refused)
            assert (answer.status, answer.rc) == (403, "CorruptPrompt")
            assert "forbidden" not in answer.body["message"]

        assert (await client.submit(messages=[question])).rc == "UnknownChatModel"
        assert server.seen[-1] == {"input": ["Hi"], "model": "small"}
        assert set(server.keys) == {f"Bearer {_KEY}"}
        assert len(server.peers) == 1


@pytest.mark.rule("NAT-17")
@pytest.mark.parametrize(
    "broken",
    [
        {"status": 500},
        {"status": 302, "headers": {"location": "/v1/elsewhere"}},
        {"answer": b"not json"},
        {"answer": b'{"results": []}'},
        {"answer": b'{"results": [{"flagged": "no"}]}'},
        {"answer": b" " * (4 * 1024 * 1024 + 1)},
        {"headers": {"content-encoding": "gzip"}, "answer": b"\x1f\x8b"},
    ],
    ids=["fails", "redirects", "no json", "no results", "another shape", "endless", "compressed"],
)
async def test_what_the_service_cannot_judge_is_let_through_or_not_taken_in(
    server: ModerationServer, broken: dict[str, Any]
) -> None:
    for name, value in broken.items():
        setattr(server, name, value)
    async with ModerationService(server.url, fails_open=True) as service:
        assert not await service.refuses(_TEXTS)
    async with ModerationService(server.url) as service:
        with pytest.raises(ModerationUnavailableError):
            await service.refuses(_TEXTS)
    assert len(server.seen) == 2


async def test_a_service_that_is_slow_or_gone_is_waited_for_no_longer_than_set(server: ModerationServer) -> None:
    server.free.clear()
    for url in (server.url, "http://127.0.0.1:1/v1/moderations"):
        async with ModerationService(url, seconds=0.1) as service:
            with pytest.raises(ModerationUnavailableError):
                await service.refuses(_TEXTS)
    server.free.set()


async def test_without_its_service_a_horde_takes_nothing_in_and_says_when_to_come_back(
    migrated_database_url: str, server: ModerationServer
) -> None:
    server.status = 503
    async with running_native(migrated_database_url, moderation_url=server.url) as native:
        answer = await (await native.user("client")).submit()
        assert (answer.status, answer.rc) == (503, "ChatAdmissionDisabled")
        assert answer.headers["retry-after"] == "60"
        assert await native.pool.fetchval("SELECT count(*) FROM chat_requests") == 0


@pytest.mark.parametrize("fails_open", [True, False])
async def test_a_prompt_over_the_bound_is_not_sent(server: ModerationServer, *, fails_open: bool) -> None:
    async with ModerationService(server.url, max_bytes=1024, fails_open=fails_open) as service:
        assert await service.refuses(["x" * 2000]) is not fails_open
        assert not await service.refuses(["", " \n"])
    assert server.seen == []


async def test_many_texts_are_sent_together(server: ModerationServer) -> None:
    async with ModerationService(server.url) as service:
        assert await service.refuses([str(number) for number in range(1000)] + ["forbidden"])
    assert len(server.seen[0]["input"]) == 251


async def test_every_prompt_is_asked_about_anew_and_all_at_once(server: ModerationServer) -> None:
    async with ModerationService(server.url) as service:
        assert await asyncio.gather(*(service.refuses(_TEXTS) for _ in range(20))) == [True] * 20
        server.word = "another"
        assert not await service.refuses(_TEXTS)
    assert len(server.seen) == 21


async def test_neither_the_key_nor_the_prompt_is_logged(server: ModerationServer) -> None:
    lines: list[str] = []
    sink = logger.add(lines.append, level="TRACE")
    server.status, server.answer = 401, _KEY.encode()
    async with ModerationService(server.url, api_key=SecretStr(_KEY), fails_open=True) as service:
        for _ in range(3):
            await service.refuses(_TEXTS)
        server.status, server.answer = 200, None
        await service.refuses(_TEXTS)
    logger.remove(sink)
    written = "".join(lines)
    assert written.count("Prompts cannot be moderated (the answer's status is 401)") == 1
    assert written.count("The moderation service answers again") == 1
    assert _KEY not in written
    assert "forbidden" not in written


@pytest.mark.parametrize("url", ["ftp://host/x", "https://user:secret@host/x", "https://host/x?key=secret", "host"])
def test_an_address_with_a_secret_in_it_or_of_another_kind_is_refused_at_start(url: str) -> None:
    environment = {"HORDE_NATIVE_DATABASE_URL": "postgresql://x", "HORDE_NATIVE_MODERATION_URL": url}
    with pytest.raises(SettingsError, match="HORDE_NATIVE_MODERATION_URL is wrong") as refused:
        load_settings(environment)
    assert "secret" not in str(refused.value)
