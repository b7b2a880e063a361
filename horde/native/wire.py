"""Bodies of the native contract as they are read: shapes, bounds, and how a failed validation is answered (NAT-2).

Integers are bounded to what the database holds; U+0000 is refused in ids and names and allowed in texts. Unknown keys
of a submit are refused, so that a typo is not silent; those of a worker's calls are ignored, as workers send more than
the chat routes read.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from horde_sdk.generation_parameters.text.chat_limits import (
    MAX_CHAT_MAX_TOKENS,
    MAX_CHAT_STOP_SEQUENCES,
    MIN_CHAT_MAX_TOKENS,
)
from horde_sdk.generation_parameters.text.chat_policy import ChatConformance, ChatReasoningEffort
from horde_sdk.worker.chat_declaration import ChatFaultReason, ChatFinishReason
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from horde.chat_contract import (
    DEFAULT_MAX_TOKENS,
    MAX_CHAT_MODEL_COUNT,
    MAX_CHAT_STOP_LENGTH,
    MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES,
    MAX_CHAT_TOOL_CALL_COUNT,
    MAX_CHAT_TOOL_CALL_ID_LENGTH,
    MAX_CHAT_TOOL_CALL_NAME_LENGTH,
    ChatMessage,
    ResponseFormat,
    Shape,
    ToolChoice,
    ToolDefinition,
    describe_validation_error,
    error_path,
)
from horde.native.context import ContextFit
from horde.native.errors import ValidationFailedError

__all__ = [
    "FaultBody",
    "MaintenanceBody",
    "PopBody",
    "ProgressBody",
    "ReplyBody",
    "SubmitBody",
    "SubmitParams",
    "parse_body",
]

_INT64: Final = 2**63 - 1
_INT32: Final = 2**31 - 1
_MAX_RESTRICTED_WORKERS: Final = 32
_MAX_DECLARATIONS: Final = 64
_PARAMS: Final = "params"
_MAX_KEYS: Final = 64
"""Keys of an object of a submit; three times what the largest one documents."""
_MAX_ERRORS: Final = 50
_MAX_NAME_CHARACTERS: Final = 64
_SCHEMA_KEYS: Final = frozenset({"parameters", "schema"})


def _as_uuid(value: object) -> object:
    if isinstance(value, str) and len(value) in {32, 36}:
        try:
            return UUID(value)
        except ValueError:
            pass
    raise PydanticCustomError("uuid", "expected a UUID")


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise PydanticCustomError("nul", "must not hold U+0000")
    return value


class _MemberOf:
    """Takes the values of an enumeration, kept as strings, and no other.

    Args:
        values: The enumeration.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._members = [str(value) for value in values]
        self._expected = ", ".join(f"'{member}'" for member in self._members)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401 - a type
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "enum": self._members}

    def _check(self, value: str) -> str:
        if value not in self._members:
            raise PydanticKnownError("literal_error", {"expected": self._expected})
        return value


def _not_null(value: Any) -> Any:  # noqa: ANN401 - a validator takes what the client sent
    """Drop members that are null: null counts as omitted (decision U47)."""
    return {key: member for key, member in value.items() if member is not None} if isinstance(value, dict) else value


def _tell_of_nulls(schema: dict[str, Any]) -> None:
    """Say in a model's schema what :func:`_not_null` does: a key that may be omitted may be null."""
    for name, described in schema.get("properties", {}).items():
        alternatives = described.get("anyOf", ())
        if name not in schema.get("required", ()) and {"type": "null"} not in alternatives:
            schema["properties"][name] = {"anyOf": [described, {"type": "null"}]}


Id = Annotated[UUID, BeforeValidator(_as_uuid)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_no_nul)]
Count = Annotated[int, Field(ge=0, le=_INT64)]
StopSequence = Annotated[str, StringConstraints(max_length=MAX_CHAT_STOP_LENGTH)]
Tokens = Annotated[int, Field(ge=1, le=_INT32)]


class SubmitParams(Shape):
    """Sampling and sizes of a submit."""

    max_length: Annotated[int, Field(ge=MIN_CHAT_MAX_TOKENS, le=MAX_CHAT_MAX_TOKENS)] = DEFAULT_MAX_TOKENS
    max_context_length: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    rep_pen: Annotated[float, Field(ge=0, le=3)] | None = None
    top_k: Annotated[int, Field(ge=0, le=_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop_sequence: Annotated[list[StopSequence], Field(max_length=MAX_CHAT_STOP_SEQUENCES)] | None = None
    seed: Annotated[int, Field(ge=-_INT64 - 1, le=_INT64)] | None = None
    reasoning_effort: Annotated[str, _MemberOf(ChatReasoningEffort)] | None = None

    model_config = ConfigDict(json_schema_extra=_tell_of_nulls)

    _drop_nulls = model_validator(mode="before")(_not_null)


class WorkerRestriction(Shape):
    """Which workers a request accepts: some alone, or all but some."""

    only: Annotated[list[Id], Field(min_length=1, max_length=_MAX_RESTRICTED_WORKERS)] | None = None
    ignore: Annotated[list[Id], Field(min_length=1, max_length=_MAX_RESTRICTED_WORKERS)] | None = None


class SubmitBody(Shape):
    """Body of ``POST /api/v2/generate/chat``; every key but ``messages`` and ``models`` is optional."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_CHAT_MODEL_COUNT)]
    params: SubmitParams = SubmitParams()
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    conformance: Annotated[str, _MemberOf(ChatConformance)] = ChatConformance.STRICT.value
    context_fit: Annotated[str, _MemberOf(ContextFit)] = ContextFit.TRUNCATE_OLDEST.value
    max_kudos: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    openai_guards: bool = False
    workers: WorkerRestriction = WorkerRestriction()
    trusted_workers: bool = False
    slow_workers: bool = True
    stream: bool = False
    operation_key: Id | None = None
    dry_run: bool = False

    model_config = ConfigDict(json_schema_extra=_tell_of_nulls)

    _drop_nulls = model_validator(mode="before")(_not_null)


class _WorkerBody(BaseModel):
    """A worker's call: exact types, further keys ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, protected_namespaces=())


class ChatLimits(_WorkerBody):
    """The limits that a worker declares for chat jobs (NAT-14)."""

    max_context_length: Tokens
    max_length: Tokens
    tools_max_temperature: Annotated[float, Field(ge=0)] | None = None


class PopBody(_WorkerBody):
    """Body of a pop: who the worker is, what it declares, and how long it waits (NAT-14)."""

    name: Annotated[Name, Field(max_length=100)]
    models: Annotated[list[Name], Field(max_length=100, fail_fast=True)] = Field(default_factory=list)
    threads: Annotated[int, Field(ge=1, le=10_000)] = 1
    bridge_agent: Annotated[str, StringConstraints(max_length=1000), AfterValidator(_no_nul)] = "unknown"
    chat_jobs: bool = False
    model_id: Name | None = None
    chat_features: Annotated[list[Annotated[Name, Field(max_length=64)]], Field(max_length=_MAX_DECLARATIONS)] = Field(
        default_factory=list
    )
    chat_limits: ChatLimits | None = None
    image_transports: Annotated[list[Annotated[Name, Field(max_length=64)]], Field(max_length=8)] = Field(
        default_factory=list
    )
    wait_seconds: Annotated[float, Field(ge=0, le=25)] = 0.0
    pop_id: Id | None = None
    running: Annotated[list[Id], Field(max_length=10_000, fail_fast=True)] | None = None

    model_config = ConfigDict(json_schema_extra=_tell_of_nulls)

    _drop_nulls = model_validator(mode="before")(_not_null)

    @model_validator(mode="after")
    def _declaration_is_whole(self) -> "PopBody":
        if self.chat_jobs and self.model_id is None:
            raise PydanticCustomError("declaration", "'model_id' is required with 'chat_jobs'")
        if self.chat_jobs and self.model_id not in self.models:
            raise PydanticCustomError("declaration", "'model_id' has to be one of 'models'")
        if self.chat_jobs and self.chat_limits is None:
            raise PydanticCustomError("declaration", "'chat_limits' is required with 'chat_jobs'")
        return self


class ProgressBody(_WorkerBody):
    """Body of a progress post; without text and reasoning it is a heartbeat and has no ``seq``."""

    id: Id
    seq: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    text: str = ""
    reasoning: str = ""

    model_config = ConfigDict(json_schema_extra=_tell_of_nulls)

    _drop_nulls = model_validator(mode="before")(_not_null)

    @model_validator(mode="after")
    def _text_is_counted(self) -> "ProgressBody":
        if (self.text or self.reasoning) and self.seq is None:
            raise PydanticCustomError("seq", "'seq' is required with 'text' or 'reasoning'")
        return self


class _CalledFunction(_WorkerBody):
    name: Annotated[Name, Field(max_length=MAX_CHAT_TOOL_CALL_NAME_LENGTH)]
    arguments: str

    @model_validator(mode="after")
    def _arguments_are_bounded(self) -> "_CalledFunction":
        if len(self.arguments.encode()) > MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES:
            raise PydanticCustomError("arguments", "'arguments' take too many bytes")
        return self


class _ToolCall(_WorkerBody):
    id: Annotated[Name, Field(max_length=MAX_CHAT_TOOL_CALL_ID_LENGTH)]
    type: Literal["function"] = "function"
    function: _CalledFunction


class ReplyMessage(_WorkerBody):
    """The reply of a model: text, calls or both, and the reasoning apart."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    tool_calls: Annotated[list[_ToolCall], Field(max_length=MAX_CHAT_TOOL_CALL_COUNT)] | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _something_is_said(self) -> "ReplyMessage":
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("reply", "a reply carries content, tool calls or both")
        return self

    def as_stored(self) -> dict[str, Any]:
        """Return the message as a status shows it: calls and reasoning only where there are any."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        return message

    def texts(self) -> list[str]:
        """Return every text of the reply: what it is measured and charged by."""
        called = [text for call in self.tool_calls or () for text in (call.function.name, call.function.arguments)]
        return [self.content or "", self.reasoning_content or "", *called]


class ReplyBody(_WorkerBody):
    """Body of a submit that carries a reply (``build_chat_reply_submit``)."""

    id: Id
    model_id: Name
    message: ReplyMessage
    finish_reason: Annotated[str, _MemberOf(ChatFinishReason)]
    native_finish_reason: Annotated[str, StringConstraints(max_length=32), AfterValidator(_no_nul)] | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class FaultBody(_WorkerBody):
    """Body of a submit that reports a fault (``build_chat_fault_submit``)."""

    id: Id
    model_id: Name | None = None
    state: Literal["faulted"]
    fault_reason: Annotated[str, StringConstraints(max_length=64), AfterValidator(_no_nul)] = (
        ChatFaultReason.GENERATION_ERROR.value
    )


class MaintenanceBody(Shape):
    """Body of ``PUT /api/v2/workers/{id}``; the message is told to the worker."""

    maintenance: bool
    message: Name | None = None


def parse_body[Body: BaseModel](model: type[Body], raw: Mapping[str, Any]) -> Body:
    """Return a body read as a model.

    Args:
        model: One of the models of this module.
        raw: The decoded JSON object.

    Raises:
        ValidationFailedError: It is not of that shape; the fields in the order of the request's keys.
    """
    if model.model_config.get("extra") == "forbid" and (crowded := _find_crowded(raw)):
        raise ValidationFailedError({crowded: f"An object may have at most {_MAX_KEYS} keys."})
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ValidationFailedError(_fields(error.errors(include_url=False, include_context=True), raw)) from None


def _find_crowded(raw: Mapping[str, Any]) -> str | None:
    """Return the top-level key at or under which an object has too many keys, before each is made an error of its own.

    The keys of schemas are the client's and no errors of the body's shape.
    """
    if len(raw) > _MAX_KEYS:
        return "body"
    for name, value in raw.items():
        pending = [value]
        while pending:
            current = pending.pop()
            if isinstance(current, list):
                pending.extend(current)
            elif isinstance(current, dict):
                if len(current) > _MAX_KEYS:
                    return name[:_MAX_NAME_CHARACTERS]
                pending.extend(member for key, member in current.items() if key not in _SCHEMA_KEYS)
    return None


def _fields(errors: list[ErrorDetails], raw: Mapping[str, Any]) -> dict[str, str]:
    params = raw.get(_PARAMS)
    order: dict[object, int] = {name: place for place, name in enumerate(raw)}
    inner: dict[object, int] = {name: place for place, name in enumerate(params if isinstance(params, dict) else ())}

    def place(error: ErrorDetails) -> tuple[int, int]:
        path = error["loc"]
        outer = order.get(path[0], len(order)) if path else len(order)
        within = inner.get(path[1], len(inner)) if path[:1] == (_PARAMS,) and path[1:2] else len(inner)
        return outer, within

    fields: dict[str, str] = {}
    for error in sorted(errors, key=place)[:_MAX_ERRORS]:
        location = error["loc"]
        inside = location[1:] if location[:1] == (_PARAMS,) and len(location) > 1 else location
        shown: ErrorDetails = {**error, "loc": inside}
        described = describe_validation_error(shown)
        fields.setdefault(error_path(inside) or "body", described.message)
    return fields
