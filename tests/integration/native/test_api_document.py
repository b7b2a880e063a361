"""The OpenAPI document is true: it has every route and code, and what routes answer is what it says."""

import re
from typing import Any
from uuid import uuid4

import jsonschema_rs
import pytest
from starlette.routing import Route

from horde.native.api_document import OPERATIONS, build_api_document
from horde.native.app import ROUTES
from horde.native.errors import FAULT_CODES, RETURN_CODES
from tests.support.native_server import MODEL, Answer, Caller, NativeServer, declaration, pop_body

_PAGE = {"/openapi.json", "/docs", "/docs/{name}"}
_DOCUMENT = build_api_document()


def _routes() -> set[tuple[str, str]]:
    served: list[Route] = [route for route in ROUTES if route.path not in _PAGE]
    return {(method, route.path) for route in served for method in (route.methods or set()) - {"HEAD"}}


def test_every_route_is_described_and_nothing_else() -> None:
    assert set(OPERATIONS) == _routes()
    described = {(method.upper(), path) for path, item in _DOCUMENT["paths"].items() for method in item}
    assert described == _routes()


def test_every_return_code_is_described_where_it_can_come_from() -> None:
    refused = {code for operation in OPERATIONS.values() for code in operation.codes}
    # Any path and method may be wrong; nothing here is for administrators or about other users.
    nowhere = {"NotFound", "MethodNotAllowed", "NotAdmin", "UserNotFound"}
    assert {code.value for code in RETURN_CODES} - {code.value for code in refused | FAULT_CODES} == nowhere
    assert set(_schema("Refusal")["properties"]["rc"]["enum"]) == {code.value for code in RETURN_CODES}
    assert set(_schema("StatusFault")["properties"]["rc"]["enum"]) == {code.value for code in FAULT_CODES}
    for operation in OPERATIONS.values():
        assert all(RETURN_CODES[code].status is not None for code in operation.codes)


def test_values_that_are_names_of_a_list_are_told_in_the_document() -> None:
    fit = _schema("SubmitBody")["properties"]["context_fit"]["anyOf"]
    assert fit[0]["enum"] == ["truncate_oldest", "grow", "reject"]
    assert fit[1] == {"type": "null"}
    assert "none" in str(_schema("SubmitParams")["properties"]["reasoning_effort"])


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = _DOCUMENT["components"]["schemas"][name]
    return found


async def test_the_page_works_without_another_server(native: NativeServer) -> None:
    async def fetch(path: str) -> tuple[int, str, bytes]:
        async with native.session.get(native.base_url + path) as response:
            return response.status, response.headers["content-type"], await response.read()

    status, kind, page = await fetch("/docs")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert b"//" not in re.sub(rb"<!DOCTYPE[^>]*>", b"", page)
    for name, expected in (("swagger-ui.css", "text/css"), ("swagger-ui-bundle.js", "text/javascript")):
        assert f"docs/{name}".encode() in page
        status, kind, content = await fetch(f"/docs/{name}")
        assert (status, kind.partition(";")[0], len(content) > 10_000) == (200, expected, True)
    assert (await fetch("/docs/other.js"))[0] == 404
    assert (await fetch("/openapi.json"))[0] == 200


class _Checked:
    """A caller whose every answer is held to the document."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def __call__(self, method: str, template: str, body: object = None, **path: str) -> Answer:
        """Make a call; ``template`` is a path of the document."""
        answer = await self._caller.call(method, template.removeprefix("/api").format(**path), body)
        described = _DOCUMENT["paths"][template][method.lower()]["responses"].get(str(answer.status))
        assert described is not None, (template, answer)
        schema = described["content"]["application/json"]["schema"]
        validator = jsonschema_rs.validator_for({**schema, "components": _DOCUMENT["components"]})
        errors = [error.message for error in validator.iter_errors(answer.body)]
        assert errors == [], (template, answer)
        return answer


_SUBMIT, _STATUS = "/api/v2/generate/chat", "/api/v2/generate/chat/status/{id}"
_OPERATION, _POP = "/api/v2/generate/chat/operation/{id}", "/api/v2/generate/text/pop"
_PROGRESS, _REPLY = "/api/v2/generate/chat/progress", "/api/v2/generate/text/submit"
_QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "models": [MODEL]}


async def test_what_routes_answer_in_the_life_of_a_request_is_what_the_document_says(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    work, ask = _Checked(owner), _Checked(client)
    assert (await work("POST", _POP, pop_body())).body["id"] is None
    gap = (await ask("POST", _SUBMIT, {**_QUESTION, "params": {"max_context_length": 9000}})).body["id"]
    assert (await ask("GET", _STATUS, id=gap)).body["impossible_reason"] is not None
    assert (await ask("DELETE", _STATUS, id=gap)).body["done"]
    assert (await ask("POST", _SUBMIT, {**_QUESTION, "dry_run": True})).status == 200

    request_id = (await ask("POST", _SUBMIT, {**_QUESTION, "operation_key": (key := str(uuid4()))})).body["id"]
    job = (await work("POST", _POP, pop_body())).body
    assert (await work("POST", _PROGRESS, {"id": job["id"], "seq": 1, "text": "A"})).body == {"cancelled": False}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = {"id": job["id"], "model_id": MODEL, "finish_reason": "stop", "message": {"content": "A reply."}}
    nonconformant = {**reply, "message": {"content": None, "tool_calls": [call]}}
    assert (await work("POST", _REPLY, nonconformant)).rc == "ChatSubmitNonconformant"
    reply["id"] = (await work("POST", _POP, pop_body())).body["id"]
    assert (await work("POST", _REPLY, reply)).body["reward"] >= 0
    assert (await work("POST", _REPLY, reply)).rc == "DuplicateGen"
    assert (await ask("DELETE", _OPERATION, id=key)).body["finished"] == 1
    assert (await ask("GET", _STATUS, id=request_id)).body["generations"][0]["message"]["content"] == "A reply."
    assert (await ask("DELETE", _OPERATION, id=str(uuid4()))).body == {"tombstone": True}

    worker_id = str(await native.worker_id())
    for template, path in (
        ("/api/v2/status/models", {}),
        ("/api/v2/status/performance", {}),
        ("/api/v2/status/heartbeat", {}),
        ("/api/v2/find_user", {}),
        ("/api/v2/workers", {}),
        ("/api/v2/workers/{id}", {"id": worker_id}),
    ):
        assert (await ask("GET", template, **path)).status == 200
    changed = await work("PUT", "/api/v2/workers/{id}", {"maintenance": True, "message": "away"}, id=worker_id)
    assert changed.body["maintenance_message"] == "away"


async def test_refusals_are_what_the_document_says(native: NativeServer, owner: Caller, client: Caller) -> None:
    work, ask = _Checked(owner), _Checked(client)
    stranger, anonymous = _Checked(native.caller("nobody's")), _Checked(native.caller())
    nothing = str(uuid4())
    refused = [
        await ask("POST", _SUBMIT, {**_QUESTION, "models": ["unknown"]}),
        await ask("POST", _SUBMIT, {**_QUESTION, "stream": 7}),
        await ask("POST", _SUBMIT, b"no json"),
        await ask("POST", _SUBMIT, {**_QUESTION, "tool_choice": "auto"}),
        await stranger("GET", "/api/v2/find_user"),
        await anonymous("POST", _POP, pop_body()),
        await ask("GET", _STATUS, id=nothing),
        await work("POST", _REPLY, {"id": nothing, "state": "faulted"}),
        await ask("GET", "/api/v2/workers/{id}", id=nothing),
        await ask("GET", "/api/v2/images/{id}", id=nothing),
        await ask("PUT", "/api/v2/workers/{id}", {}, id=nothing),
    ]
    await owner.come_online(declared=declaration())
    refused += [
        await ask("POST", _POP, pop_body()),
        await ask("PUT", "/api/v2/workers/{id}", {"maintenance": True}, id=str(await native.worker_id())),
        await ask("POST", _SUBMIT, {**_QUESTION, "max_kudos": 1}),
    ]
    assert {answer.status for answer in refused} == {400, 401, 403, 404}
    found = {answer.rc for answer in refused}
    assert {"UnknownChatModel", "BadRequest", "InvalidAPIKey", "NotOwner", "ChatKudosCapExceeded", None} <= found


@pytest.mark.parametrize("path", ["/api/v2/status/models?type=audio", "/api/v2/generate/chat/status/none"])
async def test_a_parameter_of_another_kind_is_refused(native: NativeServer, path: str) -> None:
    answer = await native.caller().call("GET", path.removeprefix("/api"))
    assert answer.status in {400, 404}
