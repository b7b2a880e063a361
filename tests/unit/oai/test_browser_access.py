"""Browsers: preflights, and headers on every response (rules CORS, decision U50)."""

import pytest

from tests.support.front import chat_body, running_front
from tests.support.streaming_transport import Exchange

EXPOSED = {
    "retry-after",
    "x-should-retry",
    "x-request-id",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
}


async def assert_readable(exchange: Exchange) -> None:
    headers = await exchange.headers()
    assert headers["access-control-allow-origin"] == "*"
    assert {name.strip() for name in headers["access-control-expose-headers"].split(",")} == EXPOSED
    assert headers["x-request-id"]


@pytest.mark.rule("CORS-1", "CORS-4")
async def test_a_preflight_allows_whatever_headers_the_browser_asks_for() -> None:
    async with running_front() as front:
        exchange = front.client.request(
            "OPTIONS",
            "/v1/chat/completions",
            headers={
                "Origin": "https://client.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type,x-title,x-stainless-os",
            },
        )
        assert await exchange.status() == 204
        headers = await exchange.headers()
        assert headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
        assert headers["access-control-allow-headers"] == "authorization,content-type,x-title,x-stainless-os"
        assert headers["access-control-max-age"] == "86400"
        await assert_readable(exchange)


@pytest.mark.rule("CORS-2", "CORS-3", "RTY-9")
async def test_every_response_can_be_read_by_any_origin() -> None:
    async with running_front() as front:
        await assert_readable(front.client.chat(chat_body()))
        await assert_readable(front.client.chat(chat_body(stream=True)))
        await assert_readable(front.client.chat(chat_body(temperature=9)))
        await assert_readable(front.client.chat(chat_body(), headers={"Authorization": "Basic x"}))
        for path in ("/v1/models", "/v1/embeddings", "/healthz", "/readyz"):
            await assert_readable(front.client.request("GET", path))
        await assert_readable(front.client.request("GET", "/v1/chat/completions"))


async def test_unknown_paths_and_methods_have_the_envelope() -> None:
    async with running_front() as front:
        unknown = front.client.request("POST", "/v1/embeddings", json={})
        assert await unknown.status() == 404
        assert (await unknown.json())["error"]["code"] == "unknown_url"
        method = front.client.request("GET", "/v1/chat/completions")
        assert await method.status() == 405
        assert "POST" in (await method.headers())["allow"]
        assert (await method.json())["error"]["code"] == "method_not_supported"
        assert await front.client.request("GET", "/v1/models/").status() == 404
