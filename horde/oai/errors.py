"""The front's errors: one table from which envelope, stream event, metrics attribute and reference page come.

The envelope is OpenAI's with ``metadata`` beside it (ADR 0034). ``code`` is the Horde's return code where the Horde
refused and one of :class:`FrontCode` otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

__all__ = ["ERROR_TABLE", "ChatFrontError", "ErrorSpec", "ErrorType", "FrontCode", "error_type"]

ErrorType = Literal[
    "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "api_error"
]
"""OpenAI's error types that the front uses (decision U24)."""

MetadataKey = Literal[
    "request_id", "rc", "retry_after", "submit_outcome", "operation_key", "kudos_estimate", "max_kudos"
]
"""The details an error may carry (ERR-5)."""

_METADATA_KEYS: Final = frozenset(get_args(MetadataKey))


class FrontCode(StrEnum):
    """The front's own error codes."""

    BAD_REQUEST = "BadRequest"
    UNSUPPORTED_PARAMETER = "UnsupportedChatParameter"
    CONFLICT = "ChatRequestConflict"
    MAX_KUDOS_EXCEEDED = "max_kudos_exceeded"
    NO_WORKER_SUPPORTS_LIMIT = "no_worker_supports_limit"
    INVALID_AUTHORIZATION = "InvalidAuthorizationHeader"
    MODEL_NOT_FOUND = "model_not_found"
    NO_WORKER_SUPPORTS_FEATURES = "no_worker_supports_features"
    UNKNOWN_URL = "unknown_url"
    METHOD_NOT_SUPPORTED = "method_not_supported"
    BODY_TIMEOUT = "RequestBodyTimeout"
    HEADERS_TIMEOUT = "RequestHeadersTimeout"
    REQUEST_TIMEOUT = "ChatRequestTimeout"
    TOO_LARGE = "RequestTooLarge"
    URL_TOO_LONG = "RequestUrlTooLong"
    UNSUPPORTED_ENCODING = "UnsupportedContentEncoding"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    HEADERS_TOO_LARGE = "RequestHeadersTooLarge"
    INTERNAL = "InternalError"
    HORDE_UNAVAILABLE = "HordeUnavailable"
    FAULTED = "ChatRequestFaulted"
    NO_GENERATION = "ChatRequestNoGeneration"
    DIVERGED = "ChatStreamDiverged"
    AT_CAPACITY = "FrontAtCapacity"
    SHUTTING_DOWN = "FrontShuttingDown"
    NO_ELIGIBLE_WORKER = "no_eligible_worker"
    QUEUE_UNAVAILABLE = "queue_unavailable"


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """What is fixed for one code.

    Attributes:
        status: HTTP status; of ``ChatStreamDiverged`` never sent, the stream has its 200.
        guidance: What it means and what a client does about it, for the reference page.
        retry_after: Seconds after which a retry can help, or None when waiting does not.
        held: A job exists or may exist, or a retry meets the same pool: ``x-should-retry: false`` (RTY-4 to RTY-6).
    """

    status: int
    guidance: str
    retry_after: int | None = None
    held: bool = False


ERROR_TABLE: Final[Mapping[FrontCode, ErrorSpec]] = MappingProxyType(
    {
        FrontCode.BAD_REQUEST: ErrorSpec(
            400, "The request is malformed; `param` names the key. Correct it and resend."
        ),
        FrontCode.UNSUPPORTED_PARAMETER: ErrorSpec(
            400, "A key or value that this service does not serve; `param` names its path. Leave it out or change it."
        ),
        FrontCode.CONFLICT: ErrorSpec(400, "Two keys contradict each other; `param` names the one to leave out."),
        FrontCode.MAX_KUDOS_EXCEEDED: ErrorSpec(
            400, "The estimate exceeds `horde.max_kudos`; `metadata` holds both. Raise the cap or lower `max_tokens`."
        ),
        FrontCode.NO_WORKER_SUPPORTS_LIMIT: ErrorSpec(
            400,
            "Over a size that every online worker declares; the message names the largest. Ask for less.",
            held=True,
        ),
        FrontCode.INVALID_AUTHORIZATION: ErrorSpec(
            401, "The Authorization header is not `Bearer <key>`. Leave it out to be the anonymous user."
        ),
        FrontCode.MODEL_NOT_FOUND: ErrorSpec(404, "No such model; `param` names the entry. List the models first."),
        FrontCode.NO_WORKER_SUPPORTS_FEATURES: ErrorSpec(
            404, "No online worker of the model declares what the request needs; the message lists it.", held=True
        ),
        FrontCode.UNKNOWN_URL: ErrorSpec(404, "No such route. The base URL ends in `/v1`."),
        FrontCode.METHOD_NOT_SUPPORTED: ErrorSpec(405, "The route exists for another HTTP method."),
        FrontCode.BODY_TIMEOUT: ErrorSpec(408, "The body did not arrive in time. Nothing was queued; send it again."),
        FrontCode.HEADERS_TIMEOUT: ErrorSpec(
            408, "The headers did not arrive in time. Nothing was queued; send it again."
        ),
        FrontCode.REQUEST_TIMEOUT: ErrorSpec(
            408, "No reply within the time a request may wait; it was cancelled.", retry_after=30, held=True
        ),
        FrontCode.TOO_LARGE: ErrorSpec(413, "The body is over the size limit, also counted after decompression."),
        FrontCode.URL_TOO_LONG: ErrorSpec(414, "The URL is over the size limit; parameters belong in the body."),
        FrontCode.UNSUPPORTED_ENCODING: ErrorSpec(415, "Only `gzip` and no `Content-Encoding` are understood."),
        FrontCode.RATE_LIMIT_EXCEEDED: ErrorSpec(429, "The Horde's rate limit; wait for `Retry-After`."),
        FrontCode.HEADERS_TOO_LARGE: ErrorSpec(431, "The headers together are over the size limit."),
        FrontCode.INTERNAL: ErrorSpec(500, "A defect of the front; its log has the traceback.", held=True),
        FrontCode.HORDE_UNAVAILABLE: ErrorSpec(
            502,
            "The Horde did not answer. With `submit_outcome` `unknown` a job may exist; otherwise nothing was queued.",
        ),
        FrontCode.FAULTED: ErrorSpec(
            502, "The Horde gave the request up; `metadata.rc` and the message say why.", held=True
        ),
        FrontCode.NO_GENERATION: ErrorSpec(502, "The request ended without a reply, for example cancelled.", held=True),
        FrontCode.DIVERGED: ErrorSpec(
            502, "The text streamed so far will not be continued. Discard it; a new request starts over.", held=True
        ),
        FrontCode.AT_CAPACITY: ErrorSpec(
            503, "This front, or your address on it, has all its requests running. Nothing was queued.", retry_after=5
        ),
        FrontCode.SHUTTING_DOWN: ErrorSpec(503, "This front is stopping; the request was cancelled.", retry_after=5),
        FrontCode.NO_ELIGIBLE_WORKER: ErrorSpec(
            503, "No online worker serves the model, or may serve this request. Check the model card.", 30, held=True
        ),
        FrontCode.QUEUE_UNAVAILABLE: ErrorSpec(
            503, "Under `fail_fast`: no eligible thread, or a longer wait than the budget. Retry later.", 30, held=True
        ),
    }
)
"""Every code of the front's own, in the order of its status."""


def error_type(status: int) -> ErrorType:
    """Return OpenAI's error type for a status (decision U24)."""
    by_status: dict[int, ErrorType] = {
        401: "authentication_error",
        403: "permission_error",
        408: "api_error",
        429: "rate_limit_error",
    }
    if status in by_status:
        return by_status[status]
    return "api_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004 - HTTP's server errors


class ChatFrontError(Exception):
    """An error as the client gets it, before or after the headers.

    Attributes:
        status: HTTP status when no header was sent yet.
        code: A :class:`FrontCode` or a native return code.
        param: Path of the key at fault.
        metadata: The details known, a subset of ERR-5's keys.
        retry_after: Seconds after which a retry can help.
        held: Whether ``x-should-retry: false`` is sent.
        headers: Further headers of the response, such as the native rate limit's.
        reason: Why a ``queue_unavailable`` refused, for metrics and log; empty otherwise (MET-8).
    """

    def __init__(  # noqa: PLR0913 - the envelope has as many fields
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        held: bool | None = None,
        headers: Mapping[str, str] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        spec = ERROR_TABLE.get(FrontCode(code)) if code in FrontCode else None
        self.code = str(code)
        self.message = message
        self.param = param
        self.status = status if status is not None else spec.status if spec else 500
        self.retry_after = retry_after if retry_after is not None or spec is None else spec.retry_after
        self.held = held if held is not None else spec is not None and spec.held
        self.headers = dict(headers or {})
        self.metadata = {key: value for key, value in (metadata or {}).items() if key in _METADATA_KEYS}
        self.reason = reason

    def envelope(self, *, in_stream: bool = False) -> dict[str, Any]:
        """Return ``{"error": {…}}`` with the four OpenAI fields always written (ERR-1, ERR-2).

        Args:
            in_stream: The headers are out: the type is the stream's and ``metadata`` carries the interval that the
                ``Retry-After`` header would have carried (STR-7).
        """
        metadata = dict(self.metadata)
        if in_stream and self.retry_after is not None:
            metadata["retry_after"] = self.retry_after
        return {
            "error": {
                "message": self.message,
                "type": "api_error" if in_stream else error_type(self.status),
                "param": self.param,
                "code": self.code,
                "metadata": metadata,
            }
        }

    def response_headers(self) -> dict[str, str]:
        """Return the headers that guide a client's retry, lower-case."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        if self.held:
            headers["x-should-retry"] = "false"
        return headers
