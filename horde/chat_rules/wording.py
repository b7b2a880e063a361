"""Validation errors in OpenAI's words (ERR-37, decision U20), with the path and code that clients branch on.

What is not of the right JSON type, missing, or none of the values allowed is ``BadRequest``; a value outside the
service's contract (a range, a length, a pattern, an unknown key) is ``UnsupportedChatParameter``.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pydantic_core import ErrorDetails

from horde.chat_rules.shapes import error_path
from horde.chat_rules.violation import ContractViolation, ViolationCode

__all__ = ["describe_validation_error"]

_MAX_QUOTED_CHARACTERS: Final = 64
_MAX_PATH_CHARACTERS: Final = 256
"""A path may hold keys of the client's, whose length has no other bound."""

_EXPECTED_TYPES: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a decimal",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "content": "a string or an array of content parts",
    "content_part": "an object with 'type' 'text' or 'image_url'",
    "stop": "a string or an array of strings",
    "tool_choice": "'none', 'auto', 'required' or an object that forces one function",
    "response_format": "an object with 'type' 'text', 'json_object' or 'json_schema'",
}

type _Described = tuple[ViolationCode, str]
"""The code and the sentence."""


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names: tuple[tuple[type, str], ...] = (
        (int, "an integer"),
        (float, "a decimal"),
        (str, "a string"),
        (list, "an array"),
        (Mapping, "an object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "a value of another type")


def _number(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def _range(word: str, sign: str, key: str) -> Callable[[str, ErrorDetails], _Described]:
    def describe(path: str, error: ErrorDetails) -> _Described:
        bound = error["ctx"][key]
        kind = "decimal" if isinstance(bound, float) else "integer"
        return "UnsupportedChatParameter", (
            f"Invalid '{path}': {kind} {word} value. Expected a value {sign} {_number(bound)}, but got "
            f"{_number(error['input'])} instead."
        )

    return describe


def _array_too_long(path: str, error: ErrorDetails) -> _Described:
    context = error["ctx"]
    if isinstance(error["input"], Mapping):
        return "UnsupportedChatParameter", (
            f"Invalid '{path}': object has too many properties. Expected an object with at most "
            f"{context['max_length']} properties, but got an object with {len(error['input'])} properties instead."
        )
    return "UnsupportedChatParameter", (
        f"Invalid '{path}': array too long. Expected an array with maximum length {context['max_length']}, but got an "
        f"array with length {context['actual_length']} instead."
    )


def _array_empty(path: str, _error: ErrorDetails) -> _Described:
    code: ViolationCode = "UnsupportedChatParameter" if path == "models" else "BadRequest"
    return code, (
        f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )


def _string_empty(path: str, _error: ErrorDetails) -> _Described:
    return "UnsupportedChatParameter", (
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    )


def _string_too_long(path: str, error: ErrorDetails) -> _Described:
    return "UnsupportedChatParameter", (
        f"Invalid '{path}': string too long. Expected a string with maximum length {error['ctx']['max_length']}, but "
        f"got a string with length {len(error['input'])} instead."
    )


def _pattern(path: str, error: ErrorDetails) -> _Described:
    return "UnsupportedChatParameter", (
        f"Invalid '{path}': string does not match pattern. Expected a string that matches the pattern "
        f"'{error['ctx']['pattern']}'."
    )


def _literal(path: str, error: ErrorDetails) -> _Described:
    given = error["input"]
    shown = f"'{given[:_MAX_QUOTED_CHARACTERS]}'" if isinstance(given, str) else _json_type(given)
    return "BadRequest", f"Invalid value for '{path}': {shown}. Supported values are: {error['ctx']['expected']}."


def _missing(path: str, _error: ErrorDetails) -> _Described:
    return "BadRequest", f"Missing required parameter: '{path}'."


def _unknown_key(path: str, _error: ErrorDetails) -> _Described:
    return "UnsupportedChatParameter", f"Unknown parameter: '{path}'."


_DESCRIPTIONS: Final[Mapping[str, Callable[[str, ErrorDetails], _Described]]] = {
    "greater_than_equal": _range("below minimum", ">=", "ge"),
    "greater_than": _range("below minimum", ">", "gt"),
    "less_than_equal": _range("above maximum", "<=", "le"),
    "less_than": _range("above maximum", "<", "lt"),
    "too_long": _array_too_long,
    "too_short": _array_empty,
    "string_too_short": _string_empty,
    "string_too_long": _string_too_long,
    "string_pattern_mismatch": _pattern,
    "literal_error": _literal,
    "missing": _missing,
    "extra_forbidden": _unknown_key,
}


def _placed(path: str, error: ErrorDetails) -> str:
    """Return the path of the key at fault, where the model reports the object around it."""
    if error["type"] == "assistant_content":
        return f"{path}.content"
    if error["type"] == "message_role" and isinstance(error["input"], Mapping):
        return f"{path}.role"
    return path


def _described(path: str, error: ErrorDetails) -> _Described:
    kind = error["type"]
    if describe := _DESCRIPTIONS.get(kind):
        return describe(path, error)
    if expected := _EXPECTED_TYPES.get(kind):
        return (
            "BadRequest",
            f"Invalid type for '{path}': expected {expected}, but got {_json_type(error['input'])} instead.",
        )
    if kind == "message_role":
        return _role(path, error["input"])
    return "BadRequest", f"Invalid '{path}': {error['msg']}."


def _role(path: str, message: object) -> _Described:
    if not isinstance(message, Mapping):
        return "BadRequest", f"Invalid type for '{path}': expected an object, but got {_json_type(message)} instead."
    if message.get("role") is None:
        return "BadRequest", f"Missing required parameter: '{path}'."
    return "BadRequest", (
        f"Invalid value for '{path}'. Supported values are: 'system', 'developer', 'user', 'assistant' and 'tool'."
    )


def describe_validation_error(error: ErrorDetails) -> ContractViolation:
    """Return a pydantic error of one of the shapes as a violation in OpenAI's words.

    Args:
        error: One entry of ``ValidationError.errors()``, its location starting at the body's top level.
    """
    path = _placed(error_path(error["loc"]), error)[:_MAX_PATH_CHARACTERS]
    code, message = _described(path, error)
    return ContractViolation(code, path, message)
