"""Is this reply what was asked (CNF-10, FMT-12, TOO-20, TOO-22); pure, and may take time: called in a thread.

A client's schema never makes the Horde read anything: every reference out of the schema is refused, and patterns run
with a bound on backtracking.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import jsonschema_rs
import orjson
from horde_sdk.worker.chat_declaration import ChatFinishReason

from horde.chat_contract import ContractViolation

__all__ = ["NonconformantReplyError", "conform_reply", "find_schema_fault"]

_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=100_000, size_limit=1_048_576, dfa_size_limit=1_048_576
)


class NonconformantReplyError(Exception):
    """The reply does not follow the request; the message says how, in a sentence without any of the reply's text."""


def _refuse_reference(uri: str) -> NoReturn:
    raise LookupError(f"references outside the schema are not followed: {uri[:128]}")


def _compile(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(dict(schema), retriever=_refuse_reference, pattern_options=_PATTERNS)


def find_schema_fault(body: Mapping[str, Any]) -> ContractViolation | None:
    """Return the first schema of a request that does not compile, or None.

    Args:
        body: A body with the keys ``tools`` and ``response_format``, validated.
    """
    schemas = [
        (f"tools[{index}].function.parameters", tool["function"]["parameters"])
        for index, tool in enumerate(body.get("tools") or ())
        if tool["function"].get("parameters") is not None
    ]
    response_format = body.get("response_format") or {}
    if response_format.get("type") == "json_schema":
        schemas.append(("response_format.json_schema.schema", response_format["json_schema"]["schema"]))
    for param, schema in schemas:
        try:
            _compile(schema)
        except (ValueError, LookupError, jsonschema_rs.ReferencingError) as error:
            reason = str(error).partition("\n")[0][:256]
            return ContractViolation(
                "UnsupportedChatParameter", param, f"'{param}' holds no valid JSON Schema: {reason}"
            )
    return None


def conform_reply(payload: Mapping[str, Any], message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    """Return the reply as it is delivered under ``strict``: the worker's, less calls beyond the first where one is due.

    Args:
        payload: The job's payload as the worker received it: tools narrowed, a forced function as that one tool.
        message: The submitted message, of the documented shape.
        finish_reason: Why generation ended.

    Raises:
        NonconformantReplyError: The reply does not follow the request.
    """
    calls = message.get("tool_calls") or []
    _check_tools(payload, calls, finish_reason)
    response_format = payload.get("response_format")
    # A reply that was cut at its limit says so by its finish reason, as OpenAI's does; what is there is delivered.
    if response_format and not calls and finish_reason != ChatFinishReason.LENGTH:
        _check_format(response_format, message.get("content"))
    if len(calls) > 1 and payload.get("parallel_tool_calls") is False:
        return {**message, "tool_calls": calls[:1]}
    return message


def _check_tools(payload: Mapping[str, Any], calls: list[dict[str, Any]], finish_reason: str) -> None:
    offered = {tool["function"]["name"] for tool in payload.get("tools") or ()}
    if calls and not offered:
        raise NonconformantReplyError("The reply calls a tool and the request offers none.")
    if any(call["function"]["name"] not in offered for call in calls):
        raise NonconformantReplyError("The reply calls a tool that the request does not offer.")
    if not calls and offered and payload.get("tool_choice") == "required":
        raise NonconformantReplyError("The request requires a tool call and the reply has none.")
    if not calls and finish_reason == "tool_calls":
        raise NonconformantReplyError("The reply finishes with 'tool_calls' and has none.")


def _check_format(response_format: Mapping[str, Any], content: object) -> None:
    if response_format["type"] == "text":
        return
    try:
        document = orjson.loads(content if isinstance(content, str) else "")
    except orjson.JSONDecodeError:
        kind = response_format["type"]
        raise NonconformantReplyError(
            f"The request's 'response_format' is '{kind}', so the reply content has to be JSON."
        ) from None
    if response_format["type"] == "json_object":
        if not isinstance(document, dict):
            raise NonconformantReplyError(
                "The request's 'response_format' is 'json_object', so the reply content has to be a JSON object."
            )
        return
    validator = _compile(response_format["json_schema"]["schema"])
    if not validator.is_valid(document):
        raise NonconformantReplyError("The reply does not satisfy the schema of its response format.")
