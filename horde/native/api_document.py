"""``/openapi.json`` and ``/docs``: the Horde's routes from its own models and its own table of return codes.

Bodies are described by the models that read them, refusals by the table that answers them; a test compares the
operations with the routes, and holds real answers to the models of :mod:`horde.native.answers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Final

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from horde.api_page import PAGE_TYPE, api_page, read_page_file
from horde.native import answers, wire
from horde.native.errors import RETURN_CODES, RefusalError, ReturnCode

__all__ = ["OPERATIONS", "Operation", "build_api_document", "docs_file", "docs_page", "openapi_json"]

type Models = tuple[type[BaseModel], ...]

_BODY: Final = frozenset(
    {ReturnCode.BAD_REQUEST, ReturnCode.BODY_READ_TIMEOUT, ReturnCode.REQUEST_TOO_LARGE},
)
"""What any body can be refused with; one of another shape is 400 without a code."""

_LIMITED: Final = frozenset({ReturnCode.TOO_MANY_PROMPTS})
_KEY: Final = frozenset({ReturnCode.INVALID_API_KEY})
_SUBMIT: Final = (
    _BODY
    | _KEY
    | _LIMITED
    | {
        ReturnCode.UNSUPPORTED_CHAT_PARAMETER,
        ReturnCode.CHAT_REQUEST_CONFLICT,
        ReturnCode.CHAT_KUDOS_CAP_EXCEEDED,
        ReturnCode.PROMPT_EXCEEDS_CONTEXT,
        ReturnCode.KUDOS_UPFRONT,
        ReturnCode.CORRUPT_PROMPT,
        ReturnCode.UNKNOWN_CHAT_MODEL,
        ReturnCode.CHAT_OPERATION_CANCELLED,
        ReturnCode.NO_ONLINE_CHAT_WORKER,
        ReturnCode.CHAT_ADMISSION_DISABLED,
        ReturnCode.CHAT_IMAGE_STORAGE_UNAVAILABLE,
        ReturnCode.MAINTENANCE_MODE,
    }
)
_OF_REQUEST: Final = _KEY | _LIMITED | {ReturnCode.REQUEST_NOT_FOUND}
_OF_JOB: Final = _BODY | _KEY | _LIMITED | {ReturnCode.NOT_OWNER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a route does.

    Attributes:
        summary: In a few words.
        tag: The section of the page.
        answers: Models of an answer, by status; several are alternatives.
        body: Models of the body; several are alternatives.
        codes: Codes it refuses with, beside those of every path.
        parameters: Its parameters beside those in the path: name and schema.
        has_key: Whether it reads ``apikey``.
        media_type: Type of an answer that is no JSON.
    """

    summary: str
    tag: str
    answers: Mapping[int, Models]
    body: Models = ()
    codes: frozenset[ReturnCode] = frozenset()
    parameters: Mapping[str, Mapping[str, Any]] | None = None
    has_key: bool = True
    media_type: str | None = None


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/api/v2/generate/chat"): Operation(
        summary="Submit a chat request",
        tag="Requests",
        body=(wire.SubmitBody,),
        answers={200: (answers.RequestTaken, answers.RequestEstimate), 202: (answers.RequestTaken,)},
        codes=_SUBMIT,
    ),
    ("GET", "/api/v2/generate/chat/status/{id}"): Operation(
        summary="Read a request's status", tag="Requests", answers={200: (answers.ChatStatus,)}, codes=_OF_REQUEST
    ),
    ("DELETE", "/api/v2/generate/chat/status/{id}"): Operation(
        summary="Cancel a request", tag="Requests", answers={200: (answers.ChatStatus,)}, codes=_OF_REQUEST
    ),
    ("DELETE", "/api/v2/generate/chat/operation/{id}"): Operation(
        summary="Cancel by operation key, also before its submit arrives",
        tag="Requests",
        answers={200: (answers.ChatStatus, answers.OperationTombstone)},
        codes=_OF_REQUEST,
    ),
    ("POST", "/api/v2/generate/text/pop"): Operation(
        summary="Take a job, waiting for one if asked to",
        tag="Jobs",
        body=(wire.PopBody,),
        answers={200: (answers.JobPopped, answers.NothingPopped)},
        codes=_BODY
        | _KEY
        | _LIMITED
        | {
            ReturnCode.ANON_FORBIDDEN_WORKER,
            ReturnCode.NOT_OWNER,
            ReturnCode.WORKER_MAINTENANCE,
            ReturnCode.UNKNOWN_CHAT_MODEL,
        },
    ),
    ("POST", "/api/v2/generate/chat/progress"): Operation(
        summary="Renew a job's lease, with what was written",
        tag="Jobs",
        body=(wire.ProgressBody,),
        answers={200: (answers.ProgressAnswer,)},
        codes=_OF_JOB,
    ),
    ("POST", "/api/v2/generate/text/submit"): Operation(
        summary="Submit a reply, or a fault",
        tag="Jobs",
        body=(wire.ReplyBody, wire.FaultBody),
        answers={200: (answers.Reward,)},
        codes=_OF_JOB | {ReturnCode.INVALID_JOB_ID, ReturnCode.DUPLICATE_GEN, ReturnCode.CHAT_SUBMIT_NONCONFORMANT},
    ),
    ("GET", "/api/v2/images/{id}"): Operation(
        summary="Read a picture by a signed address",
        tag="Jobs",
        answers={200: ()},
        media_type="image/jpeg",
        codes=frozenset({ReturnCode.IMAGE_NOT_FOUND}),
        parameters={"expires": {"type": "string"}, "signature": {"type": "string"}},
        has_key=False,
    ),
    ("GET", "/api/v2/status/models"): Operation(
        summary="List the models",
        tag="Horde",
        answers={200: (answers.KnownModel,)},
        codes=_LIMITED,
        parameters={"type": {"enum": ["text", "image"], "default": "text"}},
        has_key=False,
    ),
    ("GET", "/api/v2/status/performance"): Operation(
        summary="Read the length of the queue",
        tag="Horde",
        answers={200: (answers.HordePerformance,)},
        codes=_LIMITED,
        has_key=False,
    ),
    ("GET", "/api/v2/status/heartbeat"): Operation(
        summary="Be answered", tag="Horde", answers={200: (answers.Heartbeat,)}, has_key=False
    ),
    ("GET", "/api/v2/find_user"): Operation(
        summary="Read whose key this is", tag="Horde", answers={200: (answers.UserDetails,)}, codes=_KEY | _LIMITED
    ),
    ("GET", "/api/v2/workers"): Operation(
        summary="List the workers",
        tag="Workers",
        answers={200: (answers.WorkerDetails,)},
        codes=_LIMITED,
        has_key=False,
    ),
    ("GET", "/api/v2/workers/{id}"): Operation(
        summary="Read a worker",
        tag="Workers",
        answers={200: (answers.WorkerDetails,)},
        codes=_LIMITED | {ReturnCode.WORKER_NOT_FOUND},
        has_key=False,
    ),
    ("PUT", "/api/v2/workers/{id}"): Operation(
        summary="Put a worker in maintenance, or take it back",
        tag="Workers",
        body=(wire.MaintenanceBody,),
        answers={200: (answers.WorkerDetails,)},
        codes=_BODY | _KEY | _LIMITED | {ReturnCode.WORKER_NOT_FOUND, ReturnCode.NOT_OWNER},
    ),
    ("GET", "/healthz"): Operation(
        summary="Say whether the process lives", tag="Probes", answers={200: (answers.Health,)}, has_key=False
    ),
    ("GET", "/readyz"): Operation(
        summary="Say whether calls can be served",
        tag="Probes",
        answers={200: (answers.Readiness,), 503: (answers.Readiness,)},
        has_key=False,
    ),
}
"""Every operation of the Horde, in the order of the page."""

_LISTS: Final = frozenset({"/api/v2/status/models", "/api/v2/workers"})
"""Paths that answer a list."""


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _either(models: Models) -> dict[str, Any]:
    return _reference(models[0]) if len(models) == 1 else {"anyOf": [_reference(model) for model in models]}


def _json_content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _refusals(operation: Operation, status: int) -> list[dict[str, Any]]:
    """Return the schemas of what an operation refuses with a status."""
    codes = sorted(code.value for code in operation.codes if RETURN_CODES[code].status == status)
    schemas: list[dict[str, Any]] = []
    if codes:
        schemas.append({"allOf": [_reference(answers.Refusal), {"properties": {"rc": {"enum": codes}}}]})
    if status == 400 and (operation.body or operation.parameters):  # noqa: PLR2004 - HTTP's bad request
        schemas.append(_reference(answers.ValidationRefusal))
    if status == 503 and operation.tag != "Probes":  # noqa: PLR2004 - HTTP's service unavailable
        schemas.append(_reference(answers.UnknownOutcome))
    return schemas


def _describe_refusal(operation: Operation, status: int) -> dict[str, Any] | None:
    schemas = _refusals(operation, status)
    if not schemas:
        return None
    meanings = [
        f"`{code.value}`: {RETURN_CODES[code].meaning}"
        for code in RETURN_CODES
        if code in operation.codes and RETURN_CODES[code].status == status
    ]
    content = _json_content(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})
    described: dict[str, Any] = {
        "description": "\n\n".join(meanings) or "An answer without a code says nothing about what happened.",
        "content": content,
    }
    if status == 429:  # noqa: PLR2004 - HTTP's too many requests
        names = ("Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
        described["headers"] = {name: {"schema": {"type": "integer"}} for name in names}
    return described


def _describe_answer(path: str, operation: Operation, models: Models) -> dict[str, Any]:
    if operation.media_type is not None:
        picture = {operation.media_type: {"schema": {"type": "string", "format": "binary"}}}
        return {"description": operation.summary + ".", "content": picture}
    either = _either(models)
    schema = {"type": "array", "items": either} if path in _LISTS else either
    summaries = [" ".join((model.__doc__ or "").split()) for model in models]
    return {"description": " ".join(summaries), "content": _json_content(schema)}


def _describe_operation(method: str, path: str, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(method, path),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {
            str(status): _describe_answer(path, operation, models) for status, models in operation.answers.items()
        },
    }
    for status in sorted({entry.status for entry in RETURN_CODES.values() if entry.status is not None}):
        if (refusal := _describe_refusal(operation, status)) is not None:
            described["responses"].setdefault(str(status), refusal)
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in (operation.parameters or {}).items()
    ]
    if "{id}" in path:
        uuid = {"type": "string", "format": "uuid"}
        parameters.insert(0, {"name": "id", "in": "path", "required": True, "schema": uuid})
    if parameters:
        described["parameters"] = parameters
    if operation.has_key:
        described["security"] = [{}, {"apikey": []}]
    if operation.body:
        described["requestBody"] = {"required": True, "content": _json_content(_either(operation.body))}
    return described


def _operation_id(method: str, path: str) -> str:
    words = path.removeprefix("/api/v2").replace("{id}", "one").replace("_", "/").split("/")
    return method.lower() + "".join(word.capitalize() for word in words)


@cache
def build_api_document() -> dict[str, Any]:
    """Return the OpenAPI document, built once a process from the models and the table of return codes."""
    paths: dict[str, dict[str, Any]] = {}
    bodies: dict[type[BaseModel], None] = {}
    answered: dict[type[BaseModel], None] = dict.fromkeys(
        (answers.Refusal, answers.ValidationRefusal, answers.UnknownOutcome)
    )
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _describe_operation(method, path, operation)
        bodies |= dict.fromkeys(operation.body)
        answered |= dict.fromkeys(model for models in operation.answers.values() for model in models)
    _, definitions = models_json_schema(
        [*((model, "validation") for model in bodies), *((model, "validation") for model in answered)],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "AI Horde, native",
            "version": version("horde-oai"),
            "description": "The chat routes of the AI Horde, for those who want replies and for workers. Without a key "
            "a caller is the anonymous user. An answer without `rc` says nothing about what happened.",
            "license": {"name": "AGPL-3.0-or-later", "identifier": "AGPL-3.0-or-later"},
        },
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"apikey": {"type": "apiKey", "in": "header", "name": "apikey"}},
        },
    }


async def openapi_json(_request: Request) -> Response:
    """``GET /openapi.json``."""
    return Response(orjson.dumps(build_api_document()), media_type="application/json")


async def docs_page(_request: Request) -> Response:
    """``GET /docs``."""
    return Response(api_page("AI Horde, native"), media_type=PAGE_TYPE)


async def docs_file(request: Request) -> Response:
    """``GET /docs/{name}``: one of the page's two files.

    Raises:
        RefusalError: ``NotFound``.
    """
    found = read_page_file(request.path_params["name"])
    if found is None:
        raise RefusalError(ReturnCode.NOT_FOUND)
    media_type, content = found
    return Response(content, media_type=media_type)
