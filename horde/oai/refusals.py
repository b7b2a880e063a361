"""A native refusal as the client gets it: status and return code kept, paths in its own keys (ERR-6, REQ-47)."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from horde.chat_contract import KUDOS_CAP_EXCESS_PATTERN, NATIVE_REQUEST_PATH_PATTERN
from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.horde_client import NativeAnswer
from horde.oai.schema import ChatCompletionRequest

__all__ = ["NATIVE_FIELD_PARAMETERS", "refusal_error"]

NATIVE_FIELD_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_length": "max_tokens",
        "stop_sequence": "stop",
        "max_context_length": "horde.max_context_length",
        "max_kudos": "horde.max_kudos",
        "conformance": "horde.conformance",
        "context_fit": "horde.context_fit",
        "openai_guards": "horde.openai_guards",
        "workers": "horde.workers",
        "trusted_workers": "horde.trusted_workers",
        "slow_workers": "horde.slow_workers",
    }
)
"""Native fields and the request keys that fill them, where the names differ (REQ-48)."""

_PARAMETERS_BY_CODE: Final[Mapping[str, str]] = MappingProxyType({"PromptExceedsContext": "messages"})
"""Return codes that are always about one key, whatever their message says (decision U35)."""

_RETRY_SECONDS_OF_A_503: Final = 30
_MAX_MESSAGE_CHARACTERS: Final = 2000
_MAX_PATH_CHARACTERS: Final = 256

_HTTP_BAD_REQUEST: Final = 400
_HTTP_TOO_MANY: Final = 429
_HTTP_UNAVAILABLE: Final = 503
_REFUSALS_WITHOUT_RC: Final = MappingProxyType(
    {
        400: FrontCode.BAD_REQUEST,
        401: FrontCode.INVALID_AUTHORIZATION,
        403: FrontCode.BAD_REQUEST,
        413: FrontCode.TOO_LARGE,
        429: FrontCode.RATE_LIMIT_EXCEEDED,
    }
)


def refusal_error(
    answer: NativeAnswer, request: ChatCompletionRequest, *, request_id: str | None = None
) -> ChatFrontError:
    """Return the error for an answer of 400 and up.

    Args:
        answer: The Horde's refusal.
        request: The request refused, for the keys that its client used.
        request_id: The Horde's id when the refusal came after the submit; such an error stops automatic retries.
    """
    known = {"request_id": request_id, "rc": answer.rc}
    metadata: dict[str, Any] = {key: value for key, value in known.items() if value is not None}
    message = (answer.message or "The AI Horde refused the request.")[:_MAX_MESSAGE_CHARACTERS]
    held = request_id is not None
    if answer.rc == "ChatKudosCapExceeded":
        return _kudos_cap_error(message, metadata)
    if answer.rc == "UnknownChatModel":
        param = _param(message, request) or _model_param(request)
        if request.models is None:
            # The Horde names the place in its own list of models; this client sent one model.
            message = NATIVE_REQUEST_PATH_PATTERN.sub("'model' ", message, count=1)
        return ChatFrontError(FrontCode.MODEL_NOT_FOUND, message, param=param, metadata=metadata)
    if answer.rc == "NoOnlineChatWorker":
        return ChatFrontError(
            FrontCode.NO_ELIGIBLE_WORKER,
            message,
            param="models" if request.models else "model",
            metadata=metadata,
            retry_after=answer.retry_after,
        )
    if answer.rc is None:
        return _refusal_without_rc(answer, message, request, metadata, held=held)
    return ChatFrontError(
        answer.rc,
        message,
        param=_param(message, request) or _PARAMETERS_BY_CODE.get(answer.rc),
        status=answer.status,
        metadata=metadata,
        retry_after=_retry_after(answer),
        held=held,
        headers=_rate_limit_headers(answer),
    )


def _refusal_without_rc(
    answer: NativeAnswer, message: str, request: ChatCompletionRequest, metadata: Mapping[str, Any], *, held: bool
) -> ChatFrontError:
    code = _REFUSALS_WITHOUT_RC.get(answer.status)
    if code is None:
        return ChatFrontError(
            FrontCode.HORDE_UNAVAILABLE,
            f"The AI Horde answered {answer.status} without saying why; nothing was queued.",
            metadata=metadata,
            held=held,
        )
    param = None
    errors = answer.fields.get("errors")
    if answer.status == _HTTP_BAD_REQUEST and isinstance(errors, dict) and errors:
        field = str(next(iter(errors)))
        param = _key_sent(field.removeprefix("params."), request)
        message = f"Invalid '{param}': {str(errors[field])[:_MAX_MESSAGE_CHARACTERS]}"
    return ChatFrontError(
        code,
        message,
        param=param,
        status=answer.status,
        metadata=metadata,
        retry_after=_retry_after(answer),
        held=held,
        headers=_rate_limit_headers(answer),
    )


def _retry_after(answer: NativeAnswer) -> int | None:
    """Return the interval of a 429 or 503; a 503 always has one (RTY-1)."""
    if answer.status == _HTTP_TOO_MANY:
        return answer.retry_after
    if answer.status != _HTTP_UNAVAILABLE:
        return None
    return answer.retry_after if answer.retry_after is not None else _RETRY_SECONDS_OF_A_503


def _rate_limit_headers(answer: NativeAnswer) -> dict[str, str]:
    if answer.status != _HTTP_TOO_MANY:
        return {}
    return {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit-")}


def _kudos_cap_error(message: str, metadata: dict[str, Any]) -> ChatFrontError:
    """Read both numbers out of the message, the only place a native refusal has them (KUD-3 to KUD-6)."""
    if found := KUDOS_CAP_EXCESS_PATTERN.match(message):
        metadata = metadata | {"kudos_estimate": float(found["estimate"]), "max_kudos": int(found["cap"])}
    return ChatFrontError(FrontCode.MAX_KUDOS_EXCEEDED, message, param="horde.max_kudos", metadata=metadata)


def _model_param(request: ChatCompletionRequest) -> str:
    return "models" if request.models else "model"


def _param(message: str, request: ChatCompletionRequest) -> str | None:
    """Return the path that a native message opens with, in the client's keys (REQ-32)."""
    found = NATIVE_REQUEST_PATH_PATTERN.match(message)
    return None if found is None else _key_sent(found["path"], request)


def _key_sent(field: str, request: ChatCompletionRequest) -> str:
    """Return the key that the client filled a native field by."""
    if field.startswith("models") and request.models is None:
        return "model"
    if field == "max_length" and request.max_completion_tokens is not None:
        return "max_completion_tokens"
    name = re.split(r"[.\[]", field, maxsplit=1)[0]
    return NATIVE_FIELD_PARAMETERS.get(name, name) + field[len(name) : _MAX_PATH_CHARACTERS]
