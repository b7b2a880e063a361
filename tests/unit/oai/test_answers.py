"""Requests and responses at the boundary: headers in, defects out (decisions U42, U53)."""

from typing import Any

import aiohttp
import pytest
from loguru import logger
from starlette.types import Receive, Scope, Send

from horde.oai import app as front_app
from horde.oai.answers import read_headers
from horde.oai.app import create_app
from horde.oai.model_list import ModelCatalog
from horde.oai.settings import FrontSettings
from horde.oai.state import FrontState
from tests.support.front import FAST, chat_body, running_front
from tests.support.scripted_horde import scripted_horde
from tests.support.serving import serving
from tests.support.streaming_transport import Exchange


def headers_of(*lines: tuple[bytes, bytes]) -> dict[str, str]:
    return read_headers({"type": "http", "headers": list(lines)})


# Headers


def test_forwarded_for_in_several_lines_is_one_list_in_their_order() -> None:
    read = headers_of((b"x-forwarded-for", b"6.6.6.6"), (b"a", b"1"), (b"X-Forwarded-For", b"203.0.113.7, 10.0.0.1"))
    assert read == {"x-forwarded-for": "6.6.6.6, 203.0.113.7, 10.0.0.1", "a": "1"}


def test_of_another_name_that_stands_twice_the_first_counts() -> None:
    assert headers_of((b"X-Title", b"one"), (b"x-title", b"two")) == {"x-title": "one"}


def test_values_are_utf8_where_they_are_and_latin1_elsewhere() -> None:
    assert headers_of((b"a", "é".encode()), (b"b", b"\xe9")) == {"a": "é", "b": "é"}


async def test_the_line_of_the_trusted_proxy_counts_and_not_the_clients_own() -> None:
    async with running_front(trusted_proxies=("127.0.0.1",)) as front:
        lines = [("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "203.0.113.7")]
        await front.client.chat(chat_body(), headers=lines).json()
        assert front.horde.calls[0].headers["x-forwarded-for"] == "203.0.113.7"


async def test_without_trusted_proxies_the_horde_is_told_the_peer_whatever_a_peer_on_this_machine_claims() -> None:
    async with scripted_horde() as horde:
        app = create_app(FrontSettings(horde_urls=(horde.url,), **FAST))
        async with serving(app) as url, aiohttp.ClientSession() as session:
            claim = {"X-Forwarded-For": "203.0.113.9"}
            async with session.post(f"{url}/v1/chat/completions", json=chat_body(), headers=claim) as response:
                assert response.status == 200
        assert horde.calls[0].headers["x-forwarded-for"] == "127.0.0.1"


# Defects and unknown paths


async def test_a_defect_is_answered_in_the_envelope_and_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(_catalog: ModelCatalog) -> dict[str, Any]:
        raise KeyError("a defect")

    monkeypatch.setattr(ModelCatalog, "cards", fail)
    logged: list[str] = []
    handler = logger.add(lambda message: logged.append(str(message)), level="ERROR", format="{message}\n{exception}")
    try:
        async with running_front() as front:
            exchange = front.client.request("GET", "/v1/models")
            assert await exchange.status() == 500
            error = (await exchange.json())["error"]
            headers = await exchange.headers()
            await exchange.ended()
    finally:
        logger.remove(handler)
    assert (error["code"], error["type"]) == ("InternalError", "api_error")
    assert "a defect" not in error["message"]
    assert headers["x-should-retry"] == "false"
    assert headers["access-control-allow-origin"] == "*"
    assert "KeyError" in logged[0]


async def test_a_defect_after_the_responses_start_cuts_the_response_off() -> None:
    async def handler(_state: FrontState, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise KeyError("a defect")

    exchange = Exchange(front_app._Endpoint(handler), {"type": "http", "path": "/", "state": {"front": None}}, [])
    assert await exchange.status() == 200
    with pytest.raises(KeyError):
        await exchange.body()


@pytest.mark.parametrize("path", ["/docs/nope", "/docs/__init__.py", "/nope"])
async def test_an_unknown_path_has_the_envelope_also_below_docs(path: str) -> None:
    async with running_front() as front:
        exchange = front.client.request("GET", path)
        assert await exchange.status() == 404
        error = (await exchange.json())["error"]
    assert error["code"] == "unknown_url"
    assert f"GET {path}" in error["message"]
