"""From bytes to a request that may be submitted: everything that is checked before a slot is taken (decision U46)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Receive, Scope

from horde.chat_contract import ContractViolation
from horde.oai.attribution import build_client_agent
from horde.oai.authorization import authorization_values, read_api_key
from horde.oai.body import parse_json_object
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.horde_client import Caller
from horde.oai.schema import (
    ChatCompletionRequest,
    drop_default_no_ops,
    drop_unknown_nested_keys,
    find_refused_parameter,
    find_request_violation,
    validate_request,
)
from horde.oai.state import FrontState

__all__ = ["PreparedRequest", "prepare_request", "read_chat_request"]

_CLIENT_TIMEOUT_HEADER: Final = "x-stainless-read-timeout"
_CLIENT_TIMEOUT_MARGIN_SECONDS: Final = 15.0
"""A client that gives up retries; it has to hear from us before (decision U14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that passed every check of the front.

    Attributes:
        request: The validated request.
        body: The screened body, whose messages and tools are forwarded verbatim.
        caller: On whose behalf the Horde is called.
        source: The client's address as the limiter counts it.
        arrived: Monotonic seconds of its arrival.
        created: Unix seconds, ``created`` of the answer.
        budget_seconds: How long it may wait.
    """

    request: ChatCompletionRequest
    body: Mapping[str, Any]
    caller: Caller
    source: str
    arrived: float
    created: int
    budget_seconds: float


def _refusal(violation: ContractViolation) -> ChatFrontError:
    return ChatFrontError(violation.code, violation.message, param=violation.param)


def _check_variants(body: Mapping[str, Any]) -> None:
    """Refuse an id with a colon: model variants are not served (REQ-30)."""
    model, models = body.get("model"), body.get("models")
    entries = [("model", model)] if isinstance(model, str) else []
    if isinstance(models, list):
        entries += [(f"models[{index}]", entry) for index, entry in enumerate(models) if isinstance(entry, str)]
    for path, entry in entries:
        if ":" in entry:
            raise ChatFrontError(
                FrontCode.MODEL_NOT_FOUND,
                f"The model '{entry[:128]}' does not exist: model variants (with ':') are not served.",
                param=path,
            )


def read_chat_request(data: bytes) -> tuple[ChatCompletionRequest, dict[str, Any]]:
    """Return a body's request and what of it is forwarded: parse, screen, validate, shared rules (REQ-3).

    Args:
        data: The body as received, decompressed.

    Raises:
        ChatFrontError: The first thing that is wrong with it.
    """
    raw = parse_json_object(data)
    if violation := find_refused_parameter(raw):
        raise _refusal(violation)
    body = drop_unknown_nested_keys(drop_default_no_ops(raw))
    outcome = validate_request(body)
    if isinstance(outcome, ContractViolation):
        raise _refusal(outcome)
    _check_variants(body)
    if violation := find_request_violation(outcome, body):
        raise _refusal(violation)
    return outcome, body


def _budget(state: FrontState, request: ChatCompletionRequest, headers: Mapping[str, str]) -> float:
    settings = state.settings
    if request.stream:
        return settings.stream_timeout_seconds
    budget = settings.nonstream_timeout_seconds
    try:
        client_timeout = float(headers.get(_CLIENT_TIMEOUT_HEADER, ""))
    except ValueError:
        return budget
    if not 0 < client_timeout < float("inf"):
        return budget
    return min(budget, max(client_timeout - _CLIENT_TIMEOUT_MARGIN_SECONDS, client_timeout / 2))


async def prepare_request(
    state: FrontState, scope: Scope, receive: Receive, headers: Mapping[str, str]
) -> PreparedRequest:
    """Read and check one chat request, in the order of decision U46.

    Raises:
        ChatFrontError: It is refused; nothing was queued.
        ClientLeftError: The client left while sending.
    """
    arrived, created = time.monotonic(), int(time.time())
    api_key = read_api_key(authorization_values(scope))
    state.bodies.check_declared_size(headers)
    peer = scope.get("client")
    address = state.addresses.read(peer[0] if peer else None, headers.get("x-forwarded-for", ""))
    source = state.addresses.source(address)
    state.limiter.look(source)
    request, body = read_chat_request(await state.bodies.read(receive, headers))
    return PreparedRequest(
        request=request,
        body=body,
        caller=Caller(api_key, build_client_agent(headers), address),
        source=source,
        arrived=arrived,
        created=created,
        budget_seconds=_budget(state, request, headers),
    )
