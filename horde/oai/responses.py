"""What the front answers: completion, chunk, model card, error. Also the models of ``/openapi.json``.

On the hot path answers are built as plain dicts by :mod:`horde.oai.mapping`; a test validates what is built against
these models and against the OpenAI SDK's own.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ChatCompletionChunk",
    "ChatCompletionResponse",
    "ErrorBody",
    "ErrorMetadata",
    "ModelCard",
    "ModelList",
    "OpenAIError",
]

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CalledFunction(_Answer):
    """The function a reply calls; ``arguments`` is a JSON string."""

    name: str
    arguments: str


class ReplyToolCall(_Answer):
    """A call of a reply, as the worker sent it."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ReplyMessage(_Answer):
    """The reply: ``content`` is null only beside tool calls."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ReplyToolCall] | None = None
    reasoning_content: str | None = None


class HordeDetails(_Answer):
    """What the Horde knows of a reply, under ``x_horde``."""

    request_id: str
    worker_id: str | None
    worker_name: str | None
    kudos: float | None
    queue_wait_seconds: float | None
    context_adjustments: list[dict[str, Any]] | None
    estimated_usage: bool
    notice: str | None = None


class CompletionTokensDetails(_Answer):
    """How many of the completion's tokens were reasoning, as the worker counted."""

    reasoning_tokens: int


class Usage(_Answer):
    """Token counts; estimated where the worker reported none, which ``x_horde.estimated_usage`` says."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails | None = None


class Choice(_Answer):
    """The one choice of a completion."""

    index: Literal[0]
    message: ReplyMessage
    logprobs: None
    finish_reason: FinishReason
    native_finish_reason: str | None


class ChatCompletionResponse(_Answer):
    """A whole completion (RES-1, decision U21)."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: Usage
    x_horde: HordeDetails


class DeltaToolCall(ReplyToolCall):
    """A whole call inside a chunk, with its position."""

    index: int


class Delta(_Answer):
    """What a chunk adds to the reply."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None


class ChunkChoice(_Answer):
    """The one choice of a chunk."""

    index: Literal[0]
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None
    native_finish_reason: str | None = None


class ChatCompletionChunk(_Answer):
    """One event of a stream; ``choices`` is empty in the usage chunk alone."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChunkChoice]
    usage: Usage | None = None
    x_horde: HordeDetails | None = None


class ErrorMetadata(_Answer):
    """The details of an error that are known; nothing else is ever in it (ERR-5)."""

    request_id: str | None = None
    rc: str | None = None
    retry_after: int | None = None
    submit_outcome: Literal["unknown"] | None = None
    operation_key: str | None = None
    kudos_estimate: float | None = None
    max_kudos: int | None = None


class ErrorBody(_Answer):
    """OpenAI's four fields, always written, and the details beside them."""

    message: str
    type: str
    param: str | None
    code: str | None
    metadata: ErrorMetadata


class OpenAIError(_Answer):
    """The body of every error (ERR-1)."""

    error: ErrorBody


class Architecture(_Answer):
    """What goes into a model and comes out."""

    modality: str
    input_modalities: list[str]
    output_modalities: list[str]


class TopProvider(_Answer):
    """The largest sizes that an online worker of the model declares."""

    context_length: int
    max_completion_tokens: int
    is_moderated: bool


class CardDetails(_Answer):
    """The pool behind a model."""

    workers: int
    threads: int
    queued_tokens: float
    queued_requests: float
    eta_seconds: int


class ModelCard(_Answer):
    """A model that an online chat worker serves (MDL)."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["ai-horde"]
    name: str
    context_length: int
    architecture: Architecture
    top_provider: TopProvider
    supported_parameters: list[str]
    x_horde: CardDetails


class ModelList(_Answer):
    """The answer of ``GET /v1/models``."""

    object: Literal["list"]
    data: list[ModelCard]
