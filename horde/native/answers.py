"""Shapes of what the Horde answers, for its OpenAPI document and for tests that hold answers to it.

Routes write JSON by themselves: an answer is built once, from a row. Amounts are kudos with two decimals.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from horde.native.errors import FAULT_CODES, RETURN_CODES

__all__ = [
    "ChatStatus",
    "Health",
    "Heartbeat",
    "HordePerformance",
    "JobPopped",
    "KnownModel",
    "NothingPopped",
    "OperationTombstone",
    "ProgressAnswer",
    "Readiness",
    "Refusal",
    "RequestEstimate",
    "RequestTaken",
    "Reward",
    "UnknownOutcome",
    "UserDetails",
    "ValidationRefusal",
    "WorkerDetails",
]

Kudos = Annotated[float, Field(description="Kudos, with two decimals.")]
Tokens = Annotated[int, Field(ge=0)]


class _Answer(BaseModel):
    """An answer: all of its keys are there, and no others."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Refusal(_Answer):
    """A refusal, by a code of the table."""

    message: str
    rc: Annotated[str, Field(json_schema_extra={"enum": [code.value for code in RETURN_CODES]})]


class ValidationRefusal(_Answer):
    """A body that is not of the documented shape; it has no code."""

    message: str
    errors: Annotated[dict[str, str], Field(description="Why, by field, in the order of the request's keys.")]


class UnknownOutcome(_Answer):
    """An answer that says nothing about what happened: it has no code."""

    message: str


class RequestTaken(_Answer):
    """A request is on the Horde."""

    id: UUID
    kudos: Annotated[float, Field(description="Estimate at the full length.")]


class RequestEstimate(_Answer):
    """What a dry run quotes."""

    kudos: Kudos


class GenerationCall(_Answer):
    """A function that the model called."""

    name: str
    arguments: str


class GenerationToolCall(_Answer):
    """A tool call of a reply."""

    id: str
    type: Literal["function"]
    function: GenerationCall


class GenerationMessage(_Answer):
    """The reply of a model; calls and reasoning only where there are any."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[GenerationToolCall] = Field(default_factory=list)
    reasoning_content: str = ""


class Generation(_Answer):
    """A delivered reply, and who wrote it. Token counts are the worker's own."""

    id: UUID
    message: GenerationMessage
    finish_reason: str
    native_finish_reason: str | None
    model: str
    worker_id: UUID
    worker_name: str
    kudos: Kudos
    queue_wait_seconds: float
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None


class ImpossibleReason(_Answer):
    """Why no online worker can serve a request."""

    kind: Literal["declaration_gap"]
    missing_declarations: list[str]
    exceeded_limits: list[str]


class StatusFault(_Answer):
    """Why a request ended without a reply."""

    rc: Annotated[str, Field(json_schema_extra={"enum": sorted(code.value for code in FAULT_CODES)})]
    message: str


class ChatStatus(_Answer):
    """Where a request is in its life."""

    done: bool
    faulted: bool
    is_possible: bool
    waiting: Literal[0, 1]
    processing: Literal[0, 1]
    finished: Literal[0, 1]
    restarted: int
    queue_position: int
    wait_time: Annotated[int, Field(description="Seconds, as estimated.")]
    kudos: Annotated[float, Field(description="The estimate while it is open, then what was charged.")]
    eligible_workers: int
    eligible_worker_threads: int
    impossible_reason: ImpossibleReason | None
    context_adjustments: list[dict[str, Any]] | None
    fault: StatusFault | None
    generations: list[Generation]


class OperationTombstone(_Answer):
    """There was no request of that key, and none will come of it."""

    tombstone: Literal[True]


class ProgressTiming(_Answer):
    """How a worker posts progress."""

    interval_seconds: float
    lease_seconds: float


class JobPopped(_Answer):
    """A job for the worker."""

    id: UUID
    model: str
    chat: Literal[True]
    payload: Annotated[dict[str, Any], Field(description="What `ChatJobPayload.from_pop` of horde-sdk reads.")]
    ttl: Annotated[int, Field(description="Seconds the job lives without a progress post.")]
    progress: ProgressTiming


class NothingPopped(_Answer):
    """No job for the worker."""

    id: None
    skipped: Annotated[dict[str, int], Field(description="Requests it was passed over for, by cause.")]


class ProgressAnswer(_Answer):
    """Whether the worker should stop and drop the job."""

    cancelled: bool


class Reward(_Answer):
    """What the worker's owner got."""

    reward: Kudos


class ModelOffer(_Answer):
    """Maxima and union of what a model's online workers declare."""

    workers: int
    threads: int
    max_context_length: Tokens
    max_length: Tokens
    features: list[str]


class KnownModel(_Answer):
    """A model that the Horde knows."""

    name: str
    type: Literal["text"]
    count: Annotated[int, Field(description="Online workers.")]
    jobs: Annotated[int, Field(description="Requests waiting.")]
    queued: Annotated[int, Field(description="Tokens they ask for.")]
    eta: Annotated[int, Field(description="Seconds.")]
    performance: Annotated[float, Field(description="Tokens a second of one thread.")]
    chat: ModelOffer | None


class HordePerformance(_Answer):
    """The queue of all models together."""

    queued_text_requests: int
    queued_tokens: int
    processing_text_requests: int
    text_thread_count: int
    tokens_per_second: float


class UserDetails(_Answer):
    """Whose key it is."""

    id: int
    username: str
    kudos: Kudos
    trusted: bool
    moderator: bool


class WorkerDetails(_Answer):
    """A worker, and what it declared last."""

    id: UUID
    name: str
    type: Literal["text"]
    online: bool
    maintenance_mode: bool
    maintenance_message: str | None
    trusted: bool
    owner: str
    models: list[str]
    threads: int
    features: list[str]
    max_length: Tokens
    max_context_length: Tokens
    bridge_agent: str
    tokens_per_second: float | None


class Heartbeat(_Answer):
    """The Horde answers."""

    message: Literal["OK"]


class Health(_Answer):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(_Answer):
    """Whether calls can be served."""

    status: Literal["ok", "degraded", "draining", "unavailable"]
    failing: list[Literal["database", "redis"]] = Field(default_factory=list)
