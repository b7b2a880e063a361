"""Whether a reply satisfies the strict schema that was asked for (``structured_output_enforced``). Pure.

The grammar enforces it; this is the proof, since a grammar may pass over a keyword of the schema. What does not satisfy
the schema is faulted, never submitted; a reply that was cut at its limit is no whole document and says so instead.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import jsonschema_rs
import orjson

from horde.chat_contract import find_schema_excess

__all__ = ["breaks_strict_schema", "satisfies"]

_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=100_000,
    size_limit=1_048_576,
    dfa_size_limit=1_048_576,
)
"""Patterns are a client's: their cost is bounded."""


def _refuse_reference(uri: str) -> NoReturn:
    raise LookupError(f"references outside the schema are not followed: {uri[:64]}")


def breaks_strict_schema(response_format: Mapping[str, Any] | None, content: str) -> bool:
    """Return whether a reply does not satisfy the strict schema of its request; false when it asked for none.

    May take time for a large schema: call it in a thread.

    Args:
        response_format: As the job has it.
        content: The whole reply.
    """
    wanted = (response_format or {}).get("json_schema")
    if not isinstance(wanted, Mapping) or not wanted.get("strict"):
        return False
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return True
    schema = wanted.get("schema")
    return not satisfies(schema if isinstance(schema, Mapping) else {}, document)


def satisfies(schema: Mapping[str, Any], document: object) -> bool:
    """Return whether a document satisfies a schema; false for a schema that cannot be checked: nothing is claimed then.

    May take time for a large schema: call it in a thread.

    Args:
        schema: A client's schema.
        document: Any JSON value.
    """
    try:
        if find_schema_excess(schema) is not None:
            return False
        validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse_reference, pattern_options=_PATTERNS)
        return validator.is_valid(document)
    except (ValueError, LookupError, jsonschema_rs.ReferencingError):
        return False
