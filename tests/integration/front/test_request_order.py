"""What is looked at first: the order of a request's checks (decision U46), and that nothing later happened."""

import orjson
import pytest

from tests.support.front import Front, chat_body, running_front
from tests.support.streaming_transport import Exchange

WRONG_KEY = ("Authorization", "Basic eDp5")
TOO_LARGE = ("Content-Length", str(2**40))
OTHER_ENCODING = ("Content-Encoding", "br")


def post(front: Front, content: bytes, *headers: tuple[str, str], path: str = "/v1/chat/completions") -> Exchange:
    return front.client.request("POST", path, content=[content, b""], headers=list(headers))


async def code_of(exchange: Exchange) -> str:
    error = (await exchange.json())["error"]
    assert isinstance(error["code"], str)
    return error["code"]


@pytest.mark.rule("ADM-1", "REQ-1", "REQ-3", "REQ-49", "RTY-5", "REQ-61")
async def test_of_everything_that_is_wrong_the_first_in_order_is_reported() -> None:
    """Each step takes away the first reason of the one before."""
    everything = chat_body(min_p=1, temperature=9, tool_choice="auto")
    headers = [WRONG_KEY, TOO_LARGE, OTHER_ENCODING]
    seen = []
    async with running_front(max_inflight=1) as front:
        slot = front.state.limiter.acquire("198.51.100.1")
        seen.append(await code_of(post(front, b"{", *headers, path="/v1/chat")))
        for _ in range(len(headers) - 1):
            seen.append(await code_of(post(front, b"{", *headers)))
            del headers[0]
        seen.append(await code_of(post(front, b"{", *headers)))
        slot.release()
        seen.append(await code_of(post(front, b"{", *headers)))
        seen.append(await code_of(post(front, b"{")))
        for key in ("min_p", "temperature", "tool_choice"):
            exchange = post(front, orjson.dumps(everything))
            seen.append(await code_of(exchange))
            assert "x-should-retry" not in await exchange.headers()
            del everything[key]
        assert front.horde.calls == []
        assert await post(front, orjson.dumps(everything)).status() == 200
    assert seen == [
        "unknown_url", "InvalidAuthorizationHeader", "RequestTooLarge", "FrontAtCapacity", "UnsupportedContentEncoding",
        "BadRequest", "UnsupportedChatParameter", "UnsupportedChatParameter", "ChatRequestConflict",
    ]  # fmt: skip


@pytest.mark.rule("AUT-3", "ADM-4", "ERR-26")
@pytest.mark.parametrize("headers", [[WRONG_KEY], [TOO_LARGE], []], ids=["key", "size", "capacity"])
async def test_what_is_refused_by_its_headers_is_not_read(headers: list[tuple[str, str]]) -> None:
    async with running_front(max_inflight=1) as front:
        with front.state.limiter.acquire("198.51.100.1"):
            exchange = post(front, b"unread", *headers)
            assert await exchange.status() in {401, 413, 503}
            assert exchange._body == [b"unread", b""]


async def test_a_method_that_is_not_served_is_a_405_whatever_else_is_wrong() -> None:
    async with running_front() as front:
        exchange = front.client.request("PUT", "/v1/chat/completions", content=b"{", headers=[WRONG_KEY])
        assert await exchange.status() == 405
        assert await code_of(exchange) == "method_not_supported"


@pytest.mark.rule("AUT-1", "AUT-2")
@pytest.mark.parametrize(
    ("headers", "key"),
    [({}, "0000000000"), ({"Authorization": "Bearer 0000000000"}, "0000000000"), ({"Authorization": "bearer  k"}, "k")],
)
async def test_the_key_reaches_every_call_to_the_horde(headers: dict[str, str], key: str) -> None:
    async with running_front() as front:
        assert await front.client.chat(chat_body(), headers=headers).status() == 200
        assert {call.headers["apikey"] for call in front.horde.calls} == {key}
        assert [call.method for call in front.horde.calls] == ["POST", "GET"]


@pytest.mark.rule("AUT-3", "MDL-15")
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/test/model-a"])
async def test_the_model_list_asks_for_the_same_header(path: str) -> None:
    async with running_front() as front:
        for value in ("Basic eDp5", "Bearer", "Bearer "):
            exchange = front.client.request("GET", path, headers={"Authorization": value})
            assert await exchange.status() == 401
            assert await code_of(exchange) == "InvalidAuthorizationHeader"
        assert await front.client.request("GET", path, headers={"Authorization": "Bearer k"}).status() == 200
        assert await front.client.request("GET", path).status() == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/json; charset=latin-1", "multipart/form-data", ""])
async def test_json_is_read_whatever_the_content_type_says(content_type: str) -> None:
    async with running_front() as front:
        exchange = post(front, orjson.dumps(chat_body()), ("Content-Type", content_type))
        assert await exchange.status() == 200


@pytest.mark.rule("ADM-4")
async def test_a_body_over_the_limit_is_refused_without_a_declared_size_too() -> None:
    async with running_front(max_body_bytes=1024) as front:
        exchange = post(front, orjson.dumps(chat_body(user="x" * 1024)))
        assert await exchange.status() == 413
        assert (await exchange.headers())["connection"] == "close"
        assert await code_of(exchange) == "RequestTooLarge"


@pytest.mark.rule("ADM-5", "RTY-5")
async def test_a_body_that_does_not_come_is_a_408_that_may_be_retried() -> None:
    async with running_front(body_read_timeout_seconds=0.05) as front:
        exchange = unfinished(front)
        assert await exchange.status() == 408
        assert "x-should-retry" not in await exchange.headers()
        assert await code_of(exchange) == "RequestBodyTimeout"


async def test_a_client_that_leaves_while_it_sends_gets_nothing_and_takes_no_slot() -> None:
    async with running_front() as front:
        exchange = unfinished(front)
        await exchange.leave()
        assert exchange._start is None
        assert front.state.limiter.in_use == 0
        assert front.horde.calls == []


def unfinished(front: Front) -> Exchange:
    """Start a request whose body never comes."""
    return front.client.request("POST", "/v1/chat/completions", content=[])
