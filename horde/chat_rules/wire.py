"""Names and sentences that one side of the wire writes and the other reads.

Two programs that spell the same key, channel or sentence apart drift apart; here each is spelled once.
"""

import re
from enum import StrEnum
from typing import Final

__all__ = [
    "ANONYMOUS_API_KEY",
    "CHAT_QUEUE_KEY",
    "CHAT_REQUEST_EXPIRY_SECONDS",
    "CHAT_SIGNALS_CHANNEL",
    "DEFAULT_MAX_TOKENS",
    "KUDOS_CAP_EXCESS_PATTERN",
    "MAX_CHAT_MODEL_COUNT",
    "NATIVE_REQUEST_PATH_PATTERN",
    "VALIDATION_FAILED_MESSAGE",
    "EndedReason",
    "SignalEvent",
    "chat_stream_key",
    "kudos_cap_excess_message",
    "unknown_model_message",
]

ANONYMOUS_API_KEY: Final = "0000000000"
"""The key of everybody who has none (AUT-2)."""

CHAT_SIGNALS_CHANNEL: Final = "horde:chat:signals"
"""Channel of completion signals, one JSON object ``{"id", "event"}`` a message (NAT-8)."""

CHAT_QUEUE_KEY: Final = "horde:chat:queue"
"""Key of the queue snapshot."""

CHAT_REQUEST_EXPIRY_SECONDS: Final = 1200
"""Life of a request from its submit, in seconds (NAT-11)."""

DEFAULT_MAX_TOKENS: Final = 512
"""Reply length of a request that names none, in tokens (SMP-4)."""

MAX_CHAT_MODEL_COUNT: Final = 5
"""The most models one request accepts (REQ-26)."""

VALIDATION_FAILED_MESSAGE: Final = "Input payload validation failed"
"""The message of a native refusal that carries ``errors`` by field and no ``rc`` (REQ-47)."""


class SignalEvent(StrEnum):
    """What a signal says has become true of a request; a hint, the database is the truth."""

    STARTED = "started"
    FINISHED = "finished"
    FAULTED = "faulted"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"


class EndedReason(StrEnum):
    """Why a generation will not become the reply, in its ended marker."""

    LEASE_EXPIRED = "lease_expired"
    FAULTED = "faulted"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


def chat_stream_key(request_id: str) -> str:
    """Return the key of the stream that holds a request's deltas (NAT-9).

    Args:
        request_id: The Horde's id of the request.
    """
    return f"horde:chat:stream:{request_id}"


KUDOS_CAP_EXCESS_PATTERN: Final = re.compile(
    r"^The estimated cost of this request is (?P<estimate>\d+(?:\.\d+)?) kudos, over its cap of (?P<cap>\d+) kudos\.$",
)
"""Reads both numbers back from :func:`kudos_cap_excess_message` (KUD-5)."""


def kudos_cap_excess_message(estimate: float, cap: int) -> str:
    """Return the sentence that refuses a request over its kudos cap (MAP-35).

    Args:
        estimate: The request's price at current pricing, in kudos.
        cap: The client's ``max_kudos``.
    """
    return f"The estimated cost of this request is {estimate:.2f} kudos, over its cap of {cap} kudos."


NATIVE_REQUEST_PATH_PATTERN: Final = re.compile(
    r"^'(?P<path>[a-z_]{1,64}(?:\[\d{1,9}\]|\.[a-z_]{1,64}){0,16})' ",
)
"""Reads the request path that a native message opens with (REQ-32, decision U59).

Such as ``'models[1]' …``, or ``'messages[0].content[1].image_url' …`` of a picture that could not be fetched.
"""


def unknown_model_message(model: str, path: str) -> str:
    """Return the sentence that refuses a model the Horde does not know, opened by the path at fault (REQ-32).

    Args:
        model: The id the client sent.
        path: Where it stands in the request, such as ``models[1]``.
    """
    return f"'{path}' names a model this Horde does not know: {model[:128]}"
