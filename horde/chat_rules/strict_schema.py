"""OpenAI's structural rules for a strict JSON Schema (FMT-5, TOO-10) and the nesting bound (FMT-6, TOO-9).

Every object schema, at any nesting, sets ``additionalProperties: false`` and lists all its properties in ``required``.
The walk uses an explicit stack: a schema is a client's and may be deep. A ``$ref`` needs no following, since what it
points to inside the document is itself walked.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["find_strict_schema_fault"]

_SCHEMA_MAPS: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keywords that hold subschemas by name."""

_SCHEMAS: Final = frozenset(
    {
        "allOf", "anyOf", "contains", "else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then",
        "unevaluatedItems",
    }
)  # fmt: skip
"""Keywords that hold one subschema or a list of them."""

_MAX_NAME_CHARACTERS: Final = 64

type _Context = tuple[str, ...]


def _subschemas(schema: Mapping[str, Any], context: _Context) -> Iterator[tuple[Any, _Context]]:
    for keyword, value in schema.items():
        if keyword in _SCHEMA_MAPS:
            if isinstance(value, dict):
                for name, subschema in value.items():
                    yield subschema, (*context, keyword, name[:_MAX_NAME_CHARACTERS])
        elif keyword in _SCHEMAS:
            if isinstance(value, list):
                for position, subschema in enumerate(value):
                    yield subschema, (*context, keyword, str(position))
            elif isinstance(value, dict):
                yield value, (*context, keyword)


def _is_object_schema(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return (
        kind == "object" or (isinstance(kind, list) and "object" in kind) or isinstance(schema.get("properties"), dict)
    )


def _object_fault(schema: Mapping[str, Any]) -> str | None:
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    properties = schema.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    required = schema.get("required")
    listed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    missing = next((name for name in names if name not in listed), None)
    if missing is None:
        return None
    return (
        "'required' is required to be supplied and to be an array including every key in properties. "
        f"Missing '{missing[:_MAX_NAME_CHARACTERS]}'."
    )


def find_strict_schema_fault(schema: object) -> str | None:
    """Return what breaks the strict rules, as OpenAI words it from ``In context=`` on, or None.

    Args:
        schema: A JSON Schema as decoded JSON, within the nesting bound; what is no object breaks no rule here.
    """
    pending: list[tuple[Any, _Context]] = [(schema, ())]
    while pending:
        current, context = pending.pop()
        if not isinstance(current, dict):
            continue
        if _is_object_schema(current) and (fault := _object_fault(current)):
            return f"In context={context!r}, {fault}"
        pending.extend(reversed(list(_subschemas(current, context))))
    return None
