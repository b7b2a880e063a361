"""Tool calls from any server that holds a reply to a JSON schema (TOO-17, CNF-3, FMT-7). Pure.

The worker writes the tools into the prompt, asks for one JSON document and takes it apart again:

* a call is ``{"name": …, "arguments": {…}}``; a job that has to call once is answered with one of them;
* one that has to call, and may call often, with ``{"tool_calls": [call, …]}``;
* one that may call with that or with ``{"content": …}``: text, or a document of the job's response format.

The server's grammar enforces the choice and the schema of the arguments; a chat template without tools will do. Earlier
calls and their answers are written in the same words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from horde_sdk.worker.chat_declaration import ChatJobPayload

from horde.worker.backends.base import UnbuildableGrammarError
from horde.worker.schema_refs import embed_schema

__all__ = ["ToolGrammar", "involves_tools"]

_MAX_CALLS: Final = 8
"""Calls in one reply: the grammar has to end somewhere, and a small model would never."""

_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a function without parameters takes."""

_INTRODUCTION: Final = "You can call these functions, one JSON description a line:\n<tools>\n{tools}\n</tools>\n"
_ONE_CALL: Final = 'Answer with a call of one function as JSON: {"name": "<name>", "arguments": {...}}'
_CALLS: Final = (
    'Answer with the calls that are needed as JSON: {"tool_calls": [{"name": "<name>", "arguments": {...}}]}'
)
_MAY_CALL: Final = _CALLS + '\nWhen no call is needed, answer with {"content": "<your answer>"}'

type _Schema = dict[str, Any]


def involves_tools(job: ChatJobPayload) -> bool:
    """Whether a job offers tools, or its conversation used them."""
    return bool(job.tools) or any(
        message.get("role") == "tool" or message.get("tool_calls") for message in job.messages
    )


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    function: Mapping[str, Any]

    @property
    def parameters(self) -> Mapping[str, Any]:
        parameters = self.function.get("parameters")
        return parameters if isinstance(parameters, Mapping) and parameters else _NO_PARAMETERS


class ToolGrammar:
    """The schema of one job's reply, and the prompt that goes with it.

    Args:
        job: A job that :func:`involves_tools`.

    Raises:
        UnbuildableGrammarError: A tool, or an earlier call, is malformed.
    """

    def __init__(self, job: ChatJobPayload) -> None:
        self._job = job
        self._tools = [_read_tool(tool) for tool in job.tools or ()]
        self._must_call = job.tool_choice == "required"
        self._single = job.parallel_tool_calls is False or (self._must_call and len(self._tools) == 1)

    @property
    def has_tools(self) -> bool:
        """Whether tools are offered now; otherwise only the conversation used some."""
        return bool(self._tools)

    @property
    def calls_once(self) -> bool:
        """Whether the reply is one call and nothing else."""
        return self._must_call and self._single

    @property
    def must_call(self) -> bool:
        """Whether a reply without a call is none."""
        return self._must_call

    @property
    def formats_content(self) -> bool:
        """Whether the reply's text is a JSON document of its own."""
        return self._job.response_format is not None

    def response_format(self) -> Mapping[str, Any] | None:
        """Return the response format to ask the server for; the job's own when it offers no tools now."""
        if not self._tools:
            return self._job.response_format
        definitions: _Schema = {}
        calls = [self._call_schema(tool, definitions) for tool in self._tools]
        call = calls[0] if len(calls) == 1 else {"oneOf": calls}
        schema = call if self.calls_once else self._envelope(call, definitions)
        if definitions:
            schema = {**schema, "$defs": definitions}
        return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation with tools, calls and their answers as text."""
        messages = list(_as_text(self._job.messages))
        if not self._tools:
            return messages
        instructions = self._instructions()
        if messages and messages[0].get("role") == "system":
            return [_with_text(messages[0], instructions), *messages[1:]]
        return [{"role": "system", "content": instructions}, *messages]

    def parameters_of(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema that the arguments of a call have to satisfy; None when the tool is not strict."""
        tool = next((tool for tool in self._tools if tool.name == name), None)
        return tool.parameters if tool is not None and tool.function.get("strict") is True else None

    def offers(self, name: object) -> bool:
        """Whether a function of that name is offered."""
        return any(tool.name == name for tool in self._tools)

    def _call_schema(self, tool: _Tool, definitions: _Schema) -> _Schema:
        arguments = embed_schema(tool.parameters, f"tool_{len(definitions)}", definitions)
        return _object({"name": {"const": tool.name}, "arguments": arguments})

    def _envelope(self, call: _Schema, definitions: _Schema) -> _Schema:
        most = 1 if self._single else _MAX_CALLS
        calls = _object({"tool_calls": {"type": "array", "items": call, "minItems": 1, "maxItems": most}})
        if self._must_call:
            return calls
        return {"oneOf": [calls, _object({"content": self._content_schema(definitions)})]}

    def _content_schema(self, definitions: _Schema) -> _Schema:
        wanted = self._job.response_format
        if wanted is None:
            return {"type": "string"}
        named = wanted.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else None
        return embed_schema(schema, "content", definitions) if isinstance(schema, Mapping) else {"type": "object"}

    def _instructions(self) -> str:
        tools = "\n".join(_dump(tool.function) for tool in self._tools)
        how = _ONE_CALL if self.calls_once else _CALLS if self._must_call else _MAY_CALL
        return _INTRODUCTION.format(tools=tools) + how


def _object(properties: _Schema) -> _Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _read_tool(tool: object) -> _Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise UnbuildableGrammarError("The job offers a malformed tool.")
    return _Tool(name, function)


def _as_text(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages in the roles that every chat template knows, answers to one turn's calls in one message."""
    names: dict[object, object] = {}
    answers: list[str] = []
    for message in messages:
        if message.get("role") == "tool":
            name = names.get(message.get("tool_call_id"))
            answers.append(_dump({"name": name, "content": message.get("content")}))
            continue
        if answers:
            yield _answers(answers)
            answers = []
        calls = message.get("tool_calls")
        if not calls:
            yield dict(message)
            continue
        read = [_read_call(call) for call in calls]
        names.update((call_id, call["name"]) for call_id, call in read)
        yield {"role": "assistant", "content": _dump({"tool_calls": [call for _, call in read]})}
    if answers:
        yield _answers(answers)


def _answers(answers: Sequence[str]) -> dict[str, Any]:
    return {"role": "user", "content": "Answers of the functions:\n" + "\n".join(answers)}


def _read_call(call: object) -> tuple[object, dict[str, Any]]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise UnbuildableGrammarError("The conversation holds a malformed call.")
    arguments = function.get("arguments")
    try:
        document = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        document = arguments
    return call.get("id"), {"name": function.get("name"), "arguments": document}


def _with_text(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}"}


def _dump(value: object) -> str:
    return orjson.dumps(value).decode()
