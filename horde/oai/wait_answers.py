"""What the client gets when a wait ended without a reply: statuses, sentences, retry guidance (rules NEW, FFA, ERR)."""

from collections.abc import Mapping
from typing import Any, Final

from horde_sdk.generation_parameters.text.chat_policy import ChatGuarantee, ChatLimitField

from horde.oai.errors import ChatFrontError, FrontCode
from horde.oai.refusals import refusal_error
from horde.oai.schema import ChatCompletionRequest
from horde.oai.wait_errors import (
    DeclarationGapError,
    FrontStoppingError,
    NoEligibleWorkerError,
    NoGenerationError,
    QueueUnavailableError,
    RequestFaultedError,
    StatusRefusedError,
    StreamDivergedError,
    WaitError,
)

__all__ = ["QUEUE_UNAVAILABLE_RETRY_AFTER_CAP_SECONDS", "shutting_down_error", "wait_error_answer"]

QUEUE_UNAVAILABLE_RETRY_AFTER_CAP_SECONDS: Final = 600
"""The longest interval a refused ``fail_fast`` request is told: the pool changes minute to minute (FFA-4)."""

_GUARANTEES: Final = frozenset(guarantee.value for guarantee in ChatGuarantee)
_SIZES: Final[Mapping[str, str]] = {
    ChatLimitField.MAX_LENGTH.value: "a completion limit",
    ChatLimitField.MAX_CONTEXT_LENGTH.value: "a context length",
}
_CARD_SIZES: Final[Mapping[str, str]] = {
    ChatLimitField.MAX_LENGTH.value: "max_completion_tokens",
    ChatLimitField.MAX_CONTEXT_LENGTH.value: "context_length",
}
_SENTENCE_OPENINGS: Final[Mapping[str, str]] = {
    "ChatSubmitNonconformant": "after refusing a worker's reply",
    "ChatWorkerFault": "after its worker reported a fault",
}
_MAX_SENTENCE_CHARACTERS: Final = 2000

_TIMEOUT_ANSWER: Final = (
    FrontCode.REQUEST_TIMEOUT,
    "The request was still waiting when its time ran out, and was cancelled.",
)
_PLAIN_ANSWERS: Final[Mapping[type[WaitError], tuple[FrontCode, str]]] = {
    NoGenerationError: (
        FrontCode.NO_GENERATION,
        "The AI Horde reports the request as done without a reply; it may have been cancelled.",
    ),
    NoEligibleWorkerError: (
        FrontCode.NO_ELIGIBLE_WORKER,
        (
            "No online worker may serve this request as it was sent. Check the model card's workers and "
            "supported_parameters, and change the request or wait for workers."
        ),
    ),
    StreamDivergedError: (
        FrontCode.DIVERGED,
        (
            "The reply's text will not be continued: its worker stopped, or the final reply differs from what was "
            "streamed. Discard the partial text; a new request starts over."
        ),
    ),
}


def wait_error_answer(
    error: WaitError, request: ChatCompletionRequest, request_id: str, cards: Mapping[str, Mapping[str, Any]]
) -> ChatFrontError:
    """Return the error for a wait that ended without a reply.

    Args:
        error: Why it ended.
        request: The request.
        request_id: The Horde's id.
        cards: Model cards by id, as far as known, for the sizes that online workers declare.
    """
    metadata: dict[str, Any] = {"request_id": request_id}
    match error:
        case StatusRefusedError(answer=answer):
            return refusal_error(answer, request, request_id=request_id)
        case RequestFaultedError():
            return _faulted(error, request_id)
        case DeclarationGapError():
            return _gap(error, request, metadata, cards)
        case QueueUnavailableError():
            return _queue_unavailable(error, metadata)
        case FrontStoppingError():
            return shutting_down_error(request_id)
        case _:
            code, message = _PLAIN_ANSWERS.get(type(error), _TIMEOUT_ANSWER)
            return ChatFrontError(code, message, metadata=metadata)


def shutting_down_error(request_id: str | None, *, unknown_operation: str | None = None) -> ChatFrontError:
    """Return the error of a request that a stopping front gives up (decision U44).

    Args:
        request_id: The Horde's id, when the request was submitted.
        unknown_operation: The operation key, when whether it was submitted stays unknown.
    """
    if unknown_operation is not None:
        return ChatFrontError(
            FrontCode.SHUTTING_DOWN,
            "This front is stopping, and whether the request was queued is unknown. It may run and be charged; a retry "
            "is a new request.",
            metadata={"submit_outcome": "unknown", "operation_key": unknown_operation},
            held=True,
        )
    if request_id is None:
        return ChatFrontError(
            FrontCode.SHUTTING_DOWN, "This front is stopping; the request was not queued and a retry is safe."
        )
    return ChatFrontError(
        FrontCode.SHUTTING_DOWN,
        "This front is stopping; the request was cancelled on the AI Horde.",
        metadata={"request_id": request_id},
        held=True,
    )


def _faulted(error: RequestFaultedError, request_id: str) -> ChatFrontError:
    """Word a fault as ERR-29 and ERR-31 have it, with the Horde's own sentence."""
    rc = error.fault.rc if error.fault else None
    message = f"The AI Horde reports request {request_id} as faulted"
    metadata = {"request_id": request_id}
    if rc is not None:
        metadata["rc"] = rc
        opening = _SENTENCE_OPENINGS.get(rc, "")
        message += f" {opening} ({rc})" if opening else f" ({rc})"
    sentence = error.fault.message if error.fault else None
    message += f": {sentence[:_MAX_SENTENCE_CHARACTERS]}" if sentence else "."
    return ChatFrontError(FrontCode.FAULTED, message, metadata=metadata)


def _queue_unavailable(error: QueueUnavailableError, metadata: Mapping[str, Any]) -> ChatFrontError:
    spoken = "unknown" if error.threads is None else str(error.threads)
    wait = "unknown" if error.wait_time is None else f"{error.wait_time:.0f} s"
    retry_after = None
    if error.reason == "wait_exceeds_budget" and error.wait_time is not None:
        retry_after = min(QUEUE_UNAVAILABLE_RETRY_AFTER_CAP_SECONDS, max(1, round(error.wait_time)))
    return ChatFrontError(
        FrontCode.QUEUE_UNAVAILABLE,
        f"The queue cannot serve this request in time: {spoken} eligible worker threads, an estimated wait of {wait}, "
        f"{error.budget_left:.0f} s of budget left. Retry later, or send horde.availability_mode 'wait' to queue.",
        param="horde.availability_mode",
        metadata=metadata,
        retry_after=retry_after,
        reason=error.reason,
    )


def _gap(
    error: DeclarationGapError,
    request: ChatCompletionRequest,
    metadata: Mapping[str, Any],
    cards: Mapping[str, Mapping[str, Any]],
) -> ChatFrontError:
    missing, exceeded = error.reason.missing_declarations, error.reason.exceeded_limits
    if exceeded and not missing and set(exceeded) <= set(_SIZES):
        return _over_limits(exceeded, request, metadata, cards)
    parts = []
    if missing:
        parts.append(f"no online worker of the model declares {', '.join(missing)}")
    if exceeded:
        parts.append(f"it exceeds every online worker's {', '.join(exceeded)}")
    message = f"This request cannot be served by the online workers: {'; '.join(parts) or 'their declarations differ'}."
    if _GUARANTEES & set(missing):
        message += " Guarantees are not required under horde.conformance 'best_effort'."
    return ChatFrontError(FrontCode.NO_WORKER_SUPPORTS_FEATURES, message, metadata=metadata)


def _over_limits(
    exceeded: tuple[str, ...],
    request: ChatCompletionRequest,
    metadata: Mapping[str, Any],
    cards: Mapping[str, Mapping[str, Any]],
) -> ChatFrontError:
    """Word a gap of sizes alone (NEW-9 to NEW-14)."""
    known = [cards[model] for model in request.accepted_models if model in cards]
    scope = "for the listed models" if request.models else "for the model"
    sentences = []
    for limit in (limit for limit in _SIZES if limit in exceeded):
        sentence = f"No worker eligible for this request currently declares {_SIZES[limit]} that high"
        if known:
            largest = max(card["top_provider"][_CARD_SIZES[limit]] for card in known)
            sentence += f"; the largest any online worker {scope} declares now is {largest} tokens."
        else:
            sentence += f" ({limit})."
        sentences.append(sentence)
    length_exceeded = ChatLimitField.MAX_LENGTH.value in exceeded
    length_key = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    return ChatFrontError(
        FrontCode.NO_WORKER_SUPPORTS_LIMIT,
        " ".join(sentences),
        param=length_key if length_exceeded else "horde.max_context_length",
        metadata=metadata,
    )
