"""Requests that clients in the field send, each against the whole front; the cases are in ``tests/data``.

A case is a request (a POST of JSON with the anonymous key to the chat route, unless it says otherwise), what its answer
has to be, and what of it has to reach the Horde. ``seen_in`` tells where such a request was met.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from horde.oai.responses import OpenAIError
from tests.support.connections import recorded_connections
from tests.support.front import Front, running_front
from tests.support.scripted_horde import Answer
from tests.support.streaming_transport import Exchange

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "field_cases.json").read_text())

CHAT_ROUTE = "/v1/chat/completions"
USUAL_HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer 0000000000"}
TYPES: Mapping[str, type] = {"string": str, "integer": int, "array": list}

HORDES = {
    "refuses_picture": Answer(
        400, {"message": "'messages[0].content[0].image_url' is no picture that can be served.", "rc": "BadRequest"}
    ),
    "no_worker": Answer(503, {"message": "No worker online serves any of the models.", "rc": "NoOnlineChatWorker"}),
}
"""What the real Horde answers a submit with in these cases; in every other one it serves the request."""

MISSING = object()


def at(value: Any, path: str) -> Any:
    """Return what stands at a path such as ``messages[1].content``, or MISSING."""
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(value, list):
            value = value[int(step)] if int(step) < len(value) else MISSING
        else:
            value = value.get(step, MISSING) if isinstance(value, dict) else MISSING
    return value


def sent(front: Front, request: Mapping[str, Any]) -> Exchange:
    content = request.get("text", "").encode() or None
    return front.client.request(
        request.get("method", "POST"),
        request.get("path", CHAT_ROUTE),
        json=request.get("body"),
        content=content,
        headers=request.get("headers", USUAL_HEADERS),
    )


async def check_headers(exchange: Exchange, expected: Mapping[str, Any]) -> None:
    headers = await exchange.headers()
    assert headers["access-control-allow-origin"] == "*"
    if kind := expected.get("content_type"):
        assert headers["content-type"].partition(";")[0] == kind
    for name, value in expected.get("headers", {}).items():
        assert headers[name] == value
    for name, words in expected.get("header_words", {}).items():
        assert set(words) <= set(re.split(r",\s*", headers[name].lower()))


def check_error(payload: Any, expected: Mapping[str, Any]) -> None:
    OpenAIError.model_validate(payload)
    error = payload["error"]
    assert set(error) == {"message", "type", "param", "code", "metadata"}
    assert error["code"] in expected.get("code", [error["code"]])
    if "param" in expected:
        assert error["param"] == expected["param"]
    assert (error["param"] or "").startswith(expected.get("param_starts", ""))
    assert expected.get("message_has", "") in error["message"]
    for path, name in expected.get("types", {}).items():
        assert type(at(payload, path)) is TYPES[name]


def check_cards(payload: Any, expected: Mapping[str, str]) -> None:
    assert payload["data"]
    wrong = [
        (card["id"], path)
        for card in payload["data"]
        for path, name in expected.items()
        if type(at(card, path)) is not TYPES[name]
    ]
    assert wrong == []


def check_native(front: Front, expected: Mapping[str, Any]) -> None:
    body = front.horde.bodies[-1]
    for path, value in expected.get("has", {}).items():
        assert at(body, path) == value, path
    assert [path for path in expected.get("lacks", ()) if at(body, path) is not MISSING] == []


@pytest.mark.rule(
    "ERR-1", "ERR-2", "REQ-2", "REQ-4", "REQ-10", "REQ-17", "REQ-30", "REQ-32", "MSG-13", "MSG-16", "TOO-12", "TOO-13",
    "FMT-5", "AUT-3", "IMG-2", "KUD-1", "CORS-2", "CORS-3", "MDL-2",
)  # fmt: skip
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['what']}")
async def test_a_request_from_the_field_is_answered_as_it_should_be(case: dict[str, Any]) -> None:
    expected = case["answer"]
    async with running_front() as front:
        if script := case.get("horde"):
            front.horde.submits = [HORDES[script]]
        with recorded_connections() as connected:
            exchange = sent(front, case["request"])
            status = await exchange.status()
            body = await exchange.body()
        assert status in expected["status"]
        assert status not in expected.get("never", ())
        await check_headers(exchange, expected)
        if status >= 400:
            check_error(json.loads(body), expected)
            assert script or front.horde.calls == []
        elif body:
            assert "error" not in json.loads(body)
        if cards := expected.get("each_card"):
            check_cards(json.loads(body), cards)
        if "native" in case:
            check_native(front, case["native"])
        if never := case.get("never_connected"):
            assert any("127.0.0.1" in each for each in connected)  # The Horde: the record is kept.
            assert not any(address in each for address in never for each in connected)


def test_every_case_says_where_it_was_met() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 48
    assert all(case["seen_in"] and case["what"] for case in CASES)
