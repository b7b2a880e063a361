"""Return codes of the Horde: THE TABLE, and the exceptions that carry them to the answer.

    NativeError                  root
    ├── RefusalError             {"message", "rc"} with the status of its code
    ├── ValidationFailedError    400 {"message", "errors"}, no code (NAT-2)
    └── OutcomeUnknownError      503 {"message"}, no code: nothing is known of what happened

No other module of the Horde spells a status. ``README_return_codes.md`` is printed from the table:
``python -m horde.native.errors > README_return_codes.md``.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import orjson

from horde.chat_contract import VALIDATION_FAILED_MESSAGE

__all__ = [
    "FAULT_CODES",
    "RETURN_CODES",
    "NativeError",
    "OutcomeUnknownError",
    "RefusalError",
    "ReturnCode",
    "ReturnCodeEntry",
    "ValidationFailedError",
    "encode_refusal",
    "render_return_codes",
]


class ReturnCode(StrEnum):
    """Every return code, as ``rc`` of a refusal or of a status's fault."""

    BAD_REQUEST = "BadRequest"
    UNSUPPORTED_CHAT_PARAMETER = "UnsupportedChatParameter"
    CHAT_REQUEST_CONFLICT = "ChatRequestConflict"
    CHAT_KUDOS_CAP_EXCEEDED = "ChatKudosCapExceeded"
    PROMPT_EXCEEDS_CONTEXT = "PromptExceedsContext"
    INVALID_API_KEY = "InvalidAPIKey"
    KUDOS_UPFRONT = "KudosUpfront"
    CORRUPT_PROMPT = "CorruptPrompt"
    ANON_FORBIDDEN_WORKER = "AnonForbiddenWorker"
    NOT_OWNER = "NotOwner"
    NOT_ADMIN = "NotAdmin"
    WORKER_MAINTENANCE = "WorkerMaintenance"
    UNKNOWN_CHAT_MODEL = "UnknownChatModel"
    REQUEST_NOT_FOUND = "RequestNotFound"
    INVALID_JOB_ID = "InvalidJobID"
    WORKER_NOT_FOUND = "WorkerNotFound"
    USER_NOT_FOUND = "UserNotFound"
    IMAGE_NOT_FOUND = "ImageNotFound"
    NOT_FOUND = "NotFound"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    BODY_READ_TIMEOUT = "BodyReadTimeout"
    DUPLICATE_GEN = "DuplicateGen"
    CHAT_OPERATION_CANCELLED = "ChatOperationCancelled"
    REQUEST_TOO_LARGE = "RequestTooLarge"
    CHAT_SUBMIT_NONCONFORMANT = "ChatSubmitNonconformant"
    TOO_MANY_PROMPTS = "TooManyPrompts"
    NO_ONLINE_CHAT_WORKER = "NoOnlineChatWorker"
    CHAT_ADMISSION_DISABLED = "ChatAdmissionDisabled"
    CHAT_IMAGE_STORAGE_UNAVAILABLE = "ChatImageStorageUnavailable"
    MAINTENANCE_MODE = "MaintenanceMode"
    CHAT_WORKER_FAULT = "ChatWorkerFault"
    ABORTED_GEN = "AbortedGen"
    REQUEST_EXPIRED = "RequestExpired"


@dataclass(frozen=True, slots=True)
class ReturnCodeEntry:
    """A row of the table.

    Attributes:
        status: HTTP status of a refusal with this code; None for a code that only a status's ``fault`` holds.
        meaning: What happened and what to do, one or two sentences; also the message where nothing more is known.
    """

    status: int | None
    meaning: str


_ROWS: Final[tuple[tuple[ReturnCode, int | None, str], ...]] = (
    (
        ReturnCode.BAD_REQUEST,
        400,
        "The request cannot be read: not JSON, not an object, or a value that cannot be stored.",
    ),
    (ReturnCode.UNSUPPORTED_CHAT_PARAMETER, 400, "A parameter has a value that the chat contract does not allow."),
    (ReturnCode.CHAT_REQUEST_CONFLICT, 400, "Two parts of the request contradict each other."),
    (
        ReturnCode.CHAT_KUDOS_CAP_EXCEEDED,
        400,
        "The estimated price is over the request's own `max_kudos`. Raise the cap or ask for a shorter reply.",
    ),
    (
        ReturnCode.PROMPT_EXCEEDS_CONTEXT,
        400,
        "The messages do not fit the context that online workers offer. Shorten them.",
    ),
    (ReturnCode.INVALID_API_KEY, 401, "No user has this API key."),
    (
        ReturnCode.KUDOS_UPFRONT,
        403,
        "The reply asked for is longer than the free output allowance, and the user does not hold its price in kudos.",
    ),
    (ReturnCode.CORRUPT_PROMPT, 403, "The prompt was refused by moderation."),
    (ReturnCode.ANON_FORBIDDEN_WORKER, 403, "The anonymous user cannot own workers. Use a key of your own."),
    (ReturnCode.NOT_OWNER, 403, "This belongs to another user."),
    (ReturnCode.NOT_ADMIN, 403, "Only an administrator may do this."),
    (ReturnCode.WORKER_MAINTENANCE, 403, "The worker is in maintenance and receives no jobs until its owner ends it."),
    (ReturnCode.UNKNOWN_CHAT_MODEL, 404, "The Horde does not know the model."),
    (ReturnCode.REQUEST_NOT_FOUND, 404, "This user has no such request, or its record has been deleted."),
    (ReturnCode.INVALID_JOB_ID, 404, "There is no such job, or its attempt has ended. Drop the job."),
    (ReturnCode.WORKER_NOT_FOUND, 404, "There is no such worker."),
    (ReturnCode.USER_NOT_FOUND, 404, "There is no such user."),
    (ReturnCode.IMAGE_NOT_FOUND, 404, "No image is at this address, or the address has expired."),
    (ReturnCode.NOT_FOUND, 404, "There is nothing at this path."),
    (ReturnCode.METHOD_NOT_ALLOWED, 405, "This path does not serve this method."),
    (ReturnCode.BODY_READ_TIMEOUT, 408, "The body did not arrive in time."),
    (ReturnCode.DUPLICATE_GEN, 409, "This job was submitted before; nothing has changed."),
    (ReturnCode.CHAT_OPERATION_CANCELLED, 409, "The operation was cancelled before this copy of it arrived."),
    (ReturnCode.REQUEST_TOO_LARGE, 413, "The body is larger than this Horde accepts."),
    (
        ReturnCode.CHAT_SUBMIT_NONCONFORMANT,
        400,
        "The reply does not follow the request (its tools, tool choice or response format) and was refused.",
    ),
    (ReturnCode.TOO_MANY_PROMPTS, 429, "Too many requests in a short time. Wait as long as `Retry-After` says."),
    (ReturnCode.NO_ONLINE_CHAT_WORKER, 503, "No online worker serves any of the models asked for."),
    (ReturnCode.CHAT_ADMISSION_DISABLED, 503, "This Horde takes no chat requests at present."),
    (ReturnCode.CHAT_IMAGE_STORAGE_UNAVAILABLE, 503, "This Horde has no image storage: send text alone."),
    (ReturnCode.MAINTENANCE_MODE, 503, "This Horde is in maintenance."),
    (ReturnCode.CHAT_WORKER_FAULT, None, "The worker could not complete the job."),
    (ReturnCode.ABORTED_GEN, None, "The workers that took the request did not answer in time, on every attempt."),
    (ReturnCode.REQUEST_EXPIRED, None, "No reply came before the request expired."),
)

RETURN_CODES: Final[Mapping[ReturnCode, ReturnCodeEntry]] = {
    code: ReturnCodeEntry(status, meaning) for code, status, meaning in _ROWS
}
"""The table."""

FAULT_CODES: Final = frozenset(
    {
        ReturnCode.CHAT_SUBMIT_NONCONFORMANT,
        ReturnCode.CHAT_WORKER_FAULT,
        ReturnCode.ABORTED_GEN,
        ReturnCode.REQUEST_EXPIRED,
    },
)
"""Codes that a status's ``fault`` may hold."""


class NativeError(Exception):
    """Something the Horde answers with an error body.

    Attributes:
        status: HTTP status.
        headers: Headers of the answer beside the usual ones.
    """

    status: int = 500

    def __init__(self, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON object."""
        return {"message": self.message}


class RefusalError(NativeError):
    """The Horde refused, and says by which rule.

    Args:
        code: The return code; its status is the answer's.
        message: One sentence; the code's own meaning when None. Never holds a key or a prompt.
        headers: Further headers, such as ``Retry-After``.
    """

    def __init__(
        self,
        code: ReturnCode,
        message: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        entry = RETURN_CODES[code]
        super().__init__(message or entry.meaning, headers=headers)
        self.code = code
        self.status = entry.status or 500

    def body(self) -> dict[str, Any]:
        """Return message and code."""
        return {"message": self.message, "rc": self.code.value}


class ValidationFailedError(NativeError):
    """A body is not of the documented shape.

    Args:
        errors: Why, by field, in the order of the request's keys; ``params.`` is left out (decision U58).
    """

    status = 400

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(VALIDATION_FAILED_MESSAGE)
        self.errors = dict(errors)

    def body(self) -> dict[str, Any]:
        """Return message and fields; there is no code."""
        return {"message": self.message, "errors": self.errors}


class OutcomeUnknownError(NativeError):
    """The database did not answer: what was asked for may have happened or not, and the answer claims neither."""

    status = 503

    def __init__(self) -> None:
        super().__init__("The Horde could not complete this; try again.", headers={"Retry-After": "2"})


def encode_refusal(status: HTTPStatus, sentence: str) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
    """Return headers and body for a call that the server refuses before it has a route: unreadable, slow, too long.

    Args:
        status: The refusal's status.
        sentence: What is wrong.
    """
    codes = {HTTPStatus.BAD_REQUEST: ReturnCode.BAD_REQUEST, HTTPStatus.REQUEST_TIMEOUT: ReturnCode.BODY_READ_TIMEOUT}
    return (), orjson.dumps(RefusalError(codes.get(status, ReturnCode.REQUEST_TOO_LARGE), sentence).body())


def render_return_codes() -> str:
    """Return ``README_return_codes.md``, made from the table."""
    lines = [
        "# Return codes",
        "",
        'A refusal is `{"message": …, "rc": …}`. A body that fails validation is 400 without an `rc`, with the',
        "failing fields under `errors`. **An answer without an `rc` says nothing about what happened.**",
        "",
        "This page is made from the table in `horde/native/errors.py` by",
        "`python -m horde.native.errors > README_return_codes.md`.",
        "",
        "| `rc` | Status | Meaning |",
        "|---|---|---|",
    ]
    for code, entry in RETURN_CODES.items():
        places = [str(entry.status)] if entry.status is not None else []
        places += ["in a status's `fault`"] if code in FAULT_CODES else []
        lines.append(f"| `{code.value}` | {', '.join(places)} | {entry.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_return_codes())
