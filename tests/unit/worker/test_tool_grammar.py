"""The schema and the prompt that make a server call tools, and what is made of its answer."""

from typing import Any

import jsonschema_rs
import orjson
import pytest
from horde_sdk.worker.chat_declaration import ChatJobPayload

from horde.worker.backends.base import UnbuildableGrammarError
from horde.worker.tool_grammar import ToolGrammar, involves_tools
from horde.worker.tool_reply import ToolViolationError, read_tool_reply
from tests.support.scripted_pops import chat_job

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PARIS = {"name": "weather", "arguments": {"city": "Paris"}}


def tool(name: str, parameters: dict[str, Any] | None = None, **function: Any) -> dict[str, Any]:
    parameters = CITY if parameters is None else parameters
    return {"type": "function", "function": {"name": name, "parameters": parameters, **function}}


def grammar(*tools: dict[str, Any], **payload: Any) -> ToolGrammar:
    return ToolGrammar(ChatJobPayload.from_pop(chat_job(tools=list(tools) or None, **payload)))


def allows(made: ToolGrammar, document: object) -> bool:
    response_format = made.response_format()
    assert response_format is not None
    return jsonschema_rs.validator_for(response_format["json_schema"]["schema"]).is_valid(document)


@pytest.mark.rule("CNF-3", "TOO-19")
def test_a_forced_function_is_one_call_of_it_and_nothing_else() -> None:
    made = grammar(tool("weather"), tool_choice="required")
    assert allows(made, PARIS)
    assert not allows(made, {"name": "time", "arguments": {"city": "Paris"}})
    assert not allows(made, {"name": "weather", "arguments": {}})
    assert not allows(made, {"content": "It is sunny."})


@pytest.mark.rule("CNF-3")
def test_a_required_choice_among_several_is_one_or_more_calls() -> None:
    made = grammar(tool("weather"), tool("time"), tool_choice="required")
    assert allows(made, {"tool_calls": [PARIS, {"name": "time", "arguments": {"city": "Rome"}}]})
    assert not allows(made, {"tool_calls": []})
    assert not allows(made, {"content": "It is sunny."})


@pytest.mark.rule("TOO-7", "TOO-22")
def test_without_parallel_calls_there_is_one() -> None:
    required = grammar(tool("weather"), tool("time"), tool_choice="required", parallel_tool_calls=False)
    assert allows(required, PARIS)
    auto = grammar(tool("weather"), parallel_tool_calls=False)
    assert allows(auto, {"tool_calls": [PARIS]})
    assert not allows(auto, {"tool_calls": [PARIS, PARIS]})


def test_under_auto_the_model_calls_or_answers() -> None:
    made = grammar(tool("weather"))
    assert allows(made, {"tool_calls": [PARIS]})
    assert allows(made, {"content": "It is sunny."})
    assert not allows(made, {"content": {"sunny": True}})


@pytest.mark.rule("FMT-7")
def test_a_response_format_is_for_the_text_and_not_for_the_calls() -> None:
    schema = {"name": "answer", "strict": True, "schema": CITY}
    made = grammar(tool("weather"), response_format={"type": "json_schema", "json_schema": schema})
    assert allows(made, {"tool_calls": [PARIS]})
    assert allows(made, {"content": {"city": "Paris"}})
    assert not allows(made, {"content": "Paris"})
    assert read_tool_reply(made, '{"content": {"city": "Paris"}}', cut=False).content == '{"city":"Paris"}'


def test_references_of_a_tools_schema_still_point_where_they_did() -> None:
    parameters = {
        "type": "object",
        "properties": {"unit": {"$ref": "#/$defs/unit"}},
        "required": ["unit"],
        "$defs": {"unit": {"enum": ["c", "f"]}},
    }
    made = grammar(tool("weather", parameters), tool("units", parameters), tool_choice="required")
    assert allows(made, {"tool_calls": [{"name": "units", "arguments": {"unit": "c"}}]})
    assert not allows(made, {"tool_calls": [{"name": "units", "arguments": {"unit": "k"}}]})


@pytest.mark.rule("TOO-17")
def test_earlier_calls_and_their_answers_are_told_in_roles_that_every_template_knows() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    told = grammar(tool("weather"), messages=messages).messages()
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    assert orjson.loads(told[2]["content"]) == {"tool_calls": [PARIS]}
    assert told[3]["content"].endswith('{"name":"weather","content":"sunny"}')


def test_a_conversation_that_used_tools_is_told_also_when_none_are_offered_now() -> None:
    job = ChatJobPayload.from_pop(chat_job(messages=[{"role": "tool", "tool_call_id": "c1", "content": "sunny"}]))
    assert involves_tools(job)
    made = ToolGrammar(job)
    assert made.response_format() is None
    assert [message["role"] for message in made.messages()] == ["user"]


@pytest.mark.rule("WRK-8")
def test_calls_get_an_id_and_their_arguments_as_json_text() -> None:
    reply = read_tool_reply(grammar(tool("weather")), orjson.dumps({"tool_calls": [PARIS, PARIS]}).decode(), cut=False)
    assert [(call.name, call.arguments) for call in reply.calls] == [("weather", '{"city":"Paris"}')] * 2
    assert reply.calls[0].id != reply.calls[1].id


def test_a_first_call_that_was_cut_is_delivered_as_far_as_it_came() -> None:
    made = grammar(tool("weather"), tool_choice="required")
    reply = read_tool_reply(made, '{"name": "weather", "arguments": {"city": "Par', cut=True)
    assert [(call.name, call.arguments) for call in reply.calls] == [("weather", '{"city": "Par')]


def test_of_calls_that_were_cut_the_whole_ones_are_delivered() -> None:
    text = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "weather", "arg'
    reply = read_tool_reply(grammar(tool("weather")), text, cut=True)
    assert [call.arguments for call in reply.calls] == ['{"city":"Paris"}']


def test_text_that_was_cut_is_delivered_as_far_as_it_came() -> None:
    assert read_tool_reply(grammar(tool("weather")), '{"content": "It is', cut=True).content in {"", "It is"}


@pytest.mark.rule("WRK-4")
@pytest.mark.parametrize(
    "text",
    [
        "It is sunny.",
        "[]",
        '{"tool_calls": 1}',
        '{"tool_calls": [{"name": "other", "arguments": {}}]}',
        '{"tool_calls": [{"name": "weather", "arguments": "Paris"}]}',
        '{"tool_calls": []}',
    ],
)
def test_a_reply_that_breaks_the_grammar_is_a_violation(text: str) -> None:
    made = grammar(tool("weather"), tool("time"), tool_choice="required")
    with pytest.raises(ToolViolationError):
        read_tool_reply(made, text, cut=False)


@pytest.mark.rule("TOO-10")
def test_the_arguments_of_a_strict_tool_are_proven() -> None:
    made = grammar(tool("weather", strict=True), tool_choice="required")
    with pytest.raises(ToolViolationError):
        read_tool_reply(made, '{"name": "weather", "arguments": {"city": 1}}', cut=False)


@pytest.mark.parametrize("malformed", [{}, {"function": 1}, {"function": {"name": 1}}])
def test_a_malformed_tool_is_a_grammar_that_cannot_be_built(malformed: dict[str, Any]) -> None:
    with pytest.raises(UnbuildableGrammarError):
        ToolGrammar(ChatJobPayload.from_pop(chat_job(tools=[malformed])))
