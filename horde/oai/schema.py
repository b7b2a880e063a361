"""The request of ``POST /v1/chat/completions``, and the name its neighbours' models are imported from.

A request is validated after :mod:`horde.oai.screening`; the model then only reads it: what is forwarded are the
client's own values.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from horde_sdk.generation_parameters.text.chat_limits import (
    MAX_CHAT_MAX_TOKENS,
    MAX_CHAT_STOP_SEQUENCES,
    MAX_CHAT_TOOL_COUNT,
    MIN_CHAT_MAX_TOKENS,
    OPENAI_MIN_MAX_TOKENS,
    OPENAI_SAMPLING_RANGES,
    SUPPORTED_CHAT_CHOICE_COUNT,
)
from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag, ValidationError, WithJsonSchema

from horde.chat_contract import (
    MAX_CHAT_MODEL_COUNT,
    MAX_CHAT_STOP_LENGTH,
    ChatMessage,
    ContractViolation,
    ResponseFormat,
    Shape,
    ToolChoice,
    ToolDefinition,
    describe_validation_error,
    find_contract_violation,
    find_native_violation,
)
from horde.oai.responses import ChatCompletionResponse, ErrorMetadata, OpenAIError
from horde.oai.screening import (
    DEFAULT_NO_OP_PARAMETERS,
    SUPPORTED_MESSAGE_KEYS,
    drop_default_no_ops,
    drop_unknown_nested_keys,
    find_refused_parameter,
)

__all__ = [
    "DEFAULT_NO_OP_PARAMETERS",
    "SUPPORTED_MESSAGE_KEYS",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "ErrorMetadata",
    "HordeOptions",
    "OpenAIError",
    "StreamOptions",
    "drop_default_no_ops",
    "drop_unknown_nested_keys",
    "find_refused_parameter",
    "find_request_violation",
    "validate_request",
]

ModelId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=255),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^:\\u0000]+$"}),
]
WorkerIds = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=64)]],
    Field(min_length=1, max_length=32, fail_fast=True),
]
_MAX_METADATA_PAIRS: Final = 16
_MAX_OPTIONS: Final = 64
_TokenLimit = Annotated[
    int,
    Field(ge=OPENAI_MIN_MAX_TOKENS, le=MAX_CHAT_MAX_TOKENS),
    WithJsonSchema({"type": "integer", "minimum": MIN_CHAT_MAX_TOKENS, "maximum": MAX_CHAT_MAX_TOKENS}),
]


def _decimal(key: str) -> Any:  # noqa: ANN401 - pydantic's Field has no other type
    """Return the bounds of a sampling value, as decimals, so that OpenAI's wording says so."""
    low, high = OPENAI_SAMPLING_RANGES[key]
    return Field(ge=float(low), le=float(high))


def _stop_variant(value: object) -> str | None:
    if isinstance(value, str):
        return "variant:one"
    return "variant:many" if isinstance(value, list) else None


_StopText = Annotated[str, StringConstraints(max_length=MAX_CHAT_STOP_LENGTH)]
_Stop = Annotated[
    Annotated[_StopText, Tag("variant:one")]
    | Annotated[list[_StopText], Field(max_length=MAX_CHAT_STOP_SEQUENCES, fail_fast=True), Tag("variant:many")],
    Discriminator(_stop_variant, custom_error_type="stop", custom_error_message="expected a string or an array"),
]


class StreamOptions(Shape):
    """What a stream carries besides the reply."""

    include_usage: bool | None = None
    """Send a chunk with the usage before the end (STR-16)."""


class WorkerRestriction(Shape):
    """Which workers may serve a request: exactly those, or all but those (decision U3)."""

    only: WorkerIds | None = None
    ignore: WorkerIds | None = None


class HordeOptions(Shape):
    """The Horde's options that OpenAI has no key for (HOR-1, decision U1)."""

    include_reasoning: bool | None = None
    """Return the model's reasoning as ``reasoning_content``; true unless the deployment says otherwise."""
    availability_mode: Literal["wait", "fail_fast"] | None = None
    """``fail_fast`` refuses at the first status read when nobody is free in time."""
    openai_guards: bool | None = None
    """Apply OpenAI's refusal of a JSON mode whose messages never mention JSON."""
    conformance: Literal["strict", "best_effort"] | None = None
    """``best_effort`` also accepts workers that guarantee nothing."""
    context_fit: Literal["truncate_oldest", "grow", "reject"] | None = None
    """What happens to messages that do not fit the context."""
    max_context_length: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """The context length in tokens."""
    max_kudos: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Cap on the kudos estimate."""
    workers: WorkerRestriction | None = None
    """Restriction by worker id."""
    trusted_workers: bool | None = None
    """Only workers of trusted users."""
    slow_workers: bool | None = None
    """False: only workers above the Horde's speed limit."""


class ChatCompletionRequest(Shape):
    """A chat completion request as served: OpenAI's keys, ``models`` and ``horde``."""

    model_config = ConfigDict(title="ChatCompletionRequest")

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    model: ModelId | None = None
    models: Annotated[list[ModelId], Field(min_length=1, max_length=MAX_CHAT_MODEL_COUNT, fail_fast=True)] | None = None
    """Acceptable models in place of ``model``, the first one quoted."""
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    temperature: Annotated[float, _decimal("temperature")] | None = None
    top_p: Annotated[float, _decimal("top_p")] | None = None
    frequency_penalty: Annotated[float, _decimal("frequency_penalty")] | None = None
    presence_penalty: Annotated[float, _decimal("presence_penalty")] | None = None
    stop: _Stop | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=SUPPORTED_CHAT_CHOICE_COUNT)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_CHAT_TOOL_COUNT, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=512)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=_MAX_METADATA_PAIRS)] | None = None
    horde: HordeOptions | None = None

    def without_content(self) -> "ChatCompletionRequest":
        """Return the request without what is large: what a wait and its answer still look at."""
        return self.model_copy(update={"messages": [], "tools": None, "response_format": None, "metadata": None})

    @property
    def accepted_models(self) -> tuple[str, ...]:
        """The models that may serve the request, the quoted one first."""
        return tuple(self.models or ()) or (self.model or "",)

    @property
    def token_limit(self) -> int | None:
        """The reply's length limit in tokens, under either key."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


_TOKEN_LIMIT_KEYS: Final = ("max_tokens", "max_completion_tokens")


def _find_model_violation(request: ChatCompletionRequest) -> ContractViolation | None:
    if request.model is not None and request.models is not None:
        return ContractViolation(
            "ChatRequestConflict",
            "models",
            "Send either 'model' or 'models', not both; leave out 'models' for one model.",
        )
    if request.model is None and request.models is None:
        return ContractViolation("BadRequest", "model", "Missing required parameter: 'model'.")
    seen: set[str] = set()
    for index, model in enumerate(request.models or ()):
        if model in seen:
            return ContractViolation(
                "BadRequest", f"models[{index}]", f"Invalid 'models[{index}]': each model may be listed once."
            )
        seen.add(model)
    for index, model in enumerate(request.accepted_models):
        if "\0" in model:
            path = "model" if request.models is None else f"models[{index}]"
            return ContractViolation("BadRequest", path, f"Invalid '{path}': must not hold U+0000.")
    return None


def _find_token_limit_violation(request: ChatCompletionRequest) -> ContractViolation | None:
    for key in _TOKEN_LIMIT_KEYS:
        value = getattr(request, key)
        if value is not None and value < MIN_CHAT_MAX_TOKENS:
            return ContractViolation(
                "UnsupportedChatParameter",
                key,
                f"Invalid '{key}': integer below minimum value. Expected a value >= {MIN_CHAT_MAX_TOKENS}, but got "
                f"{value} instead. {MIN_CHAT_MAX_TOKENS} is the shortest reply length the Horde's workers serve.",
            )
    if request.max_tokens is None or request.max_completion_tokens is None:
        return None
    if request.max_tokens == request.max_completion_tokens:
        return None
    return ContractViolation(
        "ChatRequestConflict",
        "max_completion_tokens",
        f"'max_tokens' ({request.max_tokens}) and 'max_completion_tokens' ({request.max_completion_tokens}) must "
        "agree. Leave out one of them.",
    )


_OPTION_OBJECTS: Final = (
    ("stream_options",),
    ("horde",),
    ("horde", "workers"),
    ("response_format",),
    ("response_format", "json_schema"),
    ("metadata",),
)


def _find_crowded_object(body: Mapping[str, Any]) -> ContractViolation | None:
    """Refuse an object with far more keys than it has options, before each of them is made an error of its own."""
    for steps in _OPTION_OBJECTS:
        value: Any = body
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, dict) and len(value) > _MAX_OPTIONS:
            path = ".".join(steps)
            most = _MAX_METADATA_PAIRS if path == "metadata" else _MAX_OPTIONS
            return ContractViolation(
                "UnsupportedChatParameter",
                path,
                f"Invalid '{path}': object has too many properties. Expected an object with at most {most} properties, "
                f"but got an object with {len(value)} properties instead.",
            )
    return None


def validate_request(body: Mapping[str, Any]) -> ChatCompletionRequest | ContractViolation:
    """Validate a screened body, or say what is wrong with it in OpenAI's words.

    Args:
        body: The body after the three screening steps.
    """
    if violation := _find_crowded_object(body):
        return violation
    try:
        request = ChatCompletionRequest.model_validate(body)
    except ValidationError as error:
        return describe_validation_error(error.errors(include_url=False)[0])
    return _find_model_violation(request) or _find_token_limit_violation(request) or request


def find_request_violation(request: ChatCompletionRequest, body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first rule shared with the native route that a valid request breaks, or None (REQ-49).

    Args:
        request: The validated request.
        body: The body it was validated from.
    """
    guards = bool(request.horde and request.horde.openai_guards)
    return find_contract_violation(body, openai_guards=guards) or find_native_violation(body)
