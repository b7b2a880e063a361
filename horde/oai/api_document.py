"""``/openapi.json`` and ``/docs``: the front's routes from its own models, to read and to try in a browser.

The request model is the one that validates, the response models are those that tests hold answers to, and the errors
are the table's, so the document cannot say anything else than the code does.
"""

from functools import cache
from typing import Any, Final

import orjson
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from horde.api_page import PAGE_TYPE, api_page, read_page_file
from horde.oai.answers import send_error
from horde.oai.errors import ERROR_TABLE, FrontCode
from horde.oai.responses import ChatCompletionChunk, ChatCompletionResponse, ModelCard, ModelList, OpenAIError
from horde.oai.routing_errors import unknown_url_error
from horde.oai.schema import ChatCompletionRequest
from horde.oai.state import FrontState
from horde.oai.version import FRONT_VERSION

__all__ = ["build_api_document", "docs_asset", "docs_page", "openapi_json"]

_EXAMPLE: Final = {
    "model": "SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 64,
    "stream": False,
}


def _error_responses(*statuses: int) -> dict[str, Any]:
    """Return the responses of an error status each, naming the codes of the table."""
    responses = {}
    for status in statuses:
        codes = [
            code.value for code, spec in ERROR_TABLE.items() if spec.status == status and code != FrontCode.DIVERGED
        ]
        responses[str(status)] = {
            "description": f"Codes of the front: {', '.join(codes)}." if codes else "A refusal of the Horde.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}},
        }
    return responses


def _json_content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _chat_operation() -> dict[str, Any]:
    return {
        "operationId": "createChatCompletion",
        "summary": "Create a chat completion",
        "tags": ["Chat"],
        "security": [{}, {"key": []}],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/ChatCompletionRequest"},
                    "example": _EXAMPLE,
                }
            },
        },
        "responses": {
            "200": {
                "description": "The reply, whole, or as server-sent events under `stream`: each `data:` is a chunk or "
                "one error, the last is `[DONE]`.",
                "content": {
                    **_json_content("ChatCompletionResponse"),
                    "text/event-stream": {"schema": {"$ref": "#/components/schemas/ChatCompletionChunk"}},
                },
            },
            **_error_responses(400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503),
        },
    }


def _model_operations() -> dict[str, Any]:
    security: list[dict[str, list[str]]] = [{}, {"key": []}]
    one = {
        "name": "model_id",
        "in": "path",
        "required": True,
        "description": "The model's id, which may hold slashes.",
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "/v1/models": {
            "get": {
                "operationId": "listModels",
                "summary": "List the models that online workers serve",
                "tags": ["Models"],
                "security": security,
                "responses": {
                    "200": {"description": "Cards.", "content": _json_content("ModelList")},
                    **_error_responses(401, 502),
                },
            }
        },
        "/v1/models/{model_id}": {
            "get": {
                "operationId": "retrieveModel",
                "summary": "Show one model",
                "tags": ["Models"],
                "security": security,
                "parameters": [one],
                "responses": {
                    "200": {"description": "Its card.", "content": _json_content("ModelCard")},
                    **_error_responses(401, 404, 502),
                },
            }
        },
    }


@cache
def build_api_document() -> dict[str, Any]:
    """Return the OpenAPI document, built once a process from the models."""
    _, definitions = models_json_schema(
        [
            (ChatCompletionRequest, "validation"),
            (ChatCompletionResponse, "serialization"),
            (ChatCompletionChunk, "serialization"),
            (ModelList, "serialization"),
            (ModelCard, "serialization"),
            (OpenAIError, "serialization"),
        ],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "AI Horde chat front",
            "version": FRONT_VERSION,
            "description": "OpenAI's chat completions over the AI Horde. The key is a Horde API key; without one a "
            "request is anonymous and served last.",
            "license": {"name": "AGPL-3.0-or-later", "identifier": "AGPL-3.0-or-later"},
        },
        "paths": {"/v1/chat/completions": {"post": _chat_operation()}, **_model_operations()},
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A Horde API key."}},
        },
    }


async def _answer(send: Send, status: int, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def openapi_json(_state: FrontState, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer the OpenAPI document."""
    await _answer(send, 200, "application/json", orjson.dumps(build_api_document()))


async def docs_page(_state: FrontState, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer the page that shows the document."""
    await _answer(send, 200, PAGE_TYPE, api_page("AI Horde chat front"))


async def docs_asset(_state: FrontState, scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer one of the page's two files."""
    found = read_page_file(scope["path_params"]["name"])
    if found is None:
        await send_error(send, unknown_url_error(scope["method"], scope["path"]))
        return
    await _answer(send, 200, *found)
