"""Shapes of messages, tools and response formats, shared by the front's request model and the native one.

The models only validate: a body stays a plain dict beside them and is forwarded as the client wrote it. Variants are
told apart by role or type before a variant is tried, so that an error names one path and not one per variant. Lists
stop at their first wrong item: one error is answered, and a list of a million wrong items would otherwise make as many.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

__all__ = [
    "SERVED_ROLES",
    "AssistantMessage",
    "ChatMessage",
    "FunctionDefinition",
    "ImageUrl",
    "ResponseFormat",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "error_path",
]

SERVED_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
"""The roles a message may have (MSG-1)."""

_VARIANT_PREFIX: Final = "variant:"
"""Marks the tags of variants in an error's location, which are no part of the request's path."""

_IMAGE_DATA_URL: Final = re.compile(r"data:image/[a-z0-9.+-]+(?:;[a-z0-9=.+-]+)*;base64,", re.IGNORECASE)
_WEB_URL: Final = re.compile(r"https?://[^\s/?#]+", re.IGNORECASE)


class Shape(BaseModel):
    """A JSON object of the request: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise PydanticCustomError("nul", "must not hold U+0000")
    return value


def _image_url(value: str) -> str:
    if _IMAGE_DATA_URL.match(value) or _WEB_URL.match(value):
        return value
    raise PydanticCustomError("image_url", "must be a 'data:image/...;base64,' URL or a public http(s) URL")


Name = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_no_nul)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Identifier = Annotated[str, AfterValidator(_no_nul)]


class TextPart(Shape):
    """A content part of text."""

    type: Literal["text"]
    text: str


class ImageUrl(Shape):
    """Where a picture is: inline as base64, or at a public address that the Horde fetches (IMG-2)."""

    url: Annotated[str, AfterValidator(_image_url)]
    detail: Literal["auto", "low", "high"] | None = None


class ImageUrlPart(Shape):
    """A content part of one picture; a user message's alone (IMG-8)."""

    type: Literal["image_url"]
    image_url: ImageUrl


def _type_variant(value: object, kinds: tuple[str, ...]) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return _VARIANT_PREFIX + kind if isinstance(kind, str) and kind in kinds else None


def _content_variant(value: object) -> str | None:
    if isinstance(value, str):
        return _VARIANT_PREFIX + "text"
    return _VARIANT_PREFIX + "parts" if isinstance(value, list) else None


def _part_variant(value: object) -> str | None:
    return _type_variant(value, ("text", "image_url"))


_CONTENT = Discriminator(
    _content_variant,
    custom_error_type="content",
    custom_error_message="expected a string or an array of content parts",
)
_PART = Discriminator(
    _part_variant,
    custom_error_type="content_part",
    custom_error_message="expected an object with 'type' 'text' or 'image_url'",
)

TextContent = Annotated[
    Annotated[str, Tag("variant:text")]
    | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag("variant:parts")],
    _CONTENT,
]
UserPart = Annotated[
    Annotated[TextPart, Tag("variant:text")] | Annotated[ImageUrlPart, Tag("variant:image_url")],
    _PART,
]
UserContent = Annotated[
    Annotated[str, Tag("variant:text")]
    | Annotated[list[UserPart], Field(min_length=1, fail_fast=True), Tag("variant:parts")],
    _CONTENT,
]


class SystemMessage(Shape):
    """Instructions (MSG-2); ``developer`` reaches the worker as ``system`` (MSG-19)."""

    role: Literal["system", "developer"]
    content: TextContent
    name: Name | None = None


class UserMessage(Shape):
    """What the user says and shows (MSG-3)."""

    role: Literal["user"]
    content: UserContent
    name: Name | None = None


class CalledFunction(Shape):
    """The function of a tool call and its arguments, a JSON string as the model wrote it."""

    name: Identifier
    arguments: str


class ToolCall(Shape):
    """A call in the history (MSG-10)."""

    id: Identifier
    type: Literal["function"]
    function: CalledFunction


def _assistant_content(message: "AssistantMessage") -> "AssistantMessage":
    if message.content is None and not message.tool_calls:
        raise PydanticCustomError("assistant_content", "may be null or omitted only beside 'tool_calls'")
    return message


class _AssistantFields(Shape):
    role: Literal["assistant"]
    content: TextContent | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None


class AssistantMessage(_AssistantFields):
    """What the model said and called (MSG-4); content may be missing only beside calls (MSG-5)."""


class ToolMessage(Shape):
    """The answer to one call (MSG-6)."""

    role: Literal["tool"]
    content: TextContent
    tool_call_id: Identifier


def _role_variant(value: object) -> str | None:
    role = value.get("role") if isinstance(value, Mapping) else getattr(value, "role", None)
    if not isinstance(role, str) or role not in SERVED_ROLES:
        return None
    return _VARIANT_PREFIX + ("system" if role == "developer" else role)


ChatMessage = Annotated[
    Annotated[SystemMessage, Tag("variant:system")]
    | Annotated[UserMessage, Tag("variant:user")]
    | Annotated[AssistantMessage, AfterValidator(_assistant_content), Tag("variant:assistant")]
    | Annotated[ToolMessage, Tag("variant:tool")],
    Discriminator(
        _role_variant,
        custom_error_type="message_role",
        custom_error_message="expected an object with a served 'role'",
    ),
]
"""One message, by its role."""


class FunctionDefinition(Shape):
    """A function the model may call (TOO-1); ``parameters`` is forwarded unchanged (TOO-4)."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Shape):
    """An entry of ``tools``."""

    type: Literal["function"]
    function: FunctionDefinition


class ForcedFunction(Shape):
    """The function a tool choice forces."""

    name: FunctionName


class ForcedToolChoice(Shape):
    """A tool choice that forces one function."""

    type: Literal["function"]
    function: ForcedFunction


def _choice_variant(value: object) -> str | None:
    if isinstance(value, str):
        return _VARIANT_PREFIX + "mode"
    return _VARIANT_PREFIX + "function" if isinstance(value, Mapping | ForcedToolChoice) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("variant:mode")]
    | Annotated[ForcedToolChoice, Tag("variant:function")],
    Discriminator(
        _choice_variant,
        custom_error_type="tool_choice",
        custom_error_message="expected 'none', 'auto', 'required' or an object that forces one function",
    ),
]
"""How the model may use the tools (TOO-5)."""


class JsonSchemaSpec(Shape):
    """A named schema that the reply follows; read from ``schema`` alone (FMT-2, FMT-3)."""

    model_config = ConfigDict(populate_by_name=False)

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextFormat(Shape):
    """Free text, the default."""

    type: Literal["text"]


class JsonObjectFormat(Shape):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Shape):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaSpec


def _format_variant(value: object) -> str | None:
    return _type_variant(value, ("text", "json_object", "json_schema"))


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("variant:text")]
    | Annotated[JsonObjectFormat, Tag("variant:json_object")]
    | Annotated[JsonSchemaFormat, Tag("variant:json_schema")],
    Discriminator(
        _format_variant,
        custom_error_type="response_format",
        custom_error_message="expected an object with 'type' 'text', 'json_object' or 'json_schema'",
    ),
]
"""The form of the reply's text (FMT-1)."""


def error_path(location: Sequence[Any]) -> str:
    """Return a validation error's location as a request path, such as ``messages[2].content[0].text`` (MSG-18).

    Args:
        location: pydantic's ``loc``.
    """
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not str(step).startswith(_VARIANT_PREFIX):
            path += f".{step}" if path else str(step)
    return path
