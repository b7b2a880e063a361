"""Validation of a screened request: OpenAI's ranges, wording and paths."""

from typing import Any

import pytest
from hypothesis import given

from horde.chat_contract import ContractViolation
from horde.oai.schema import (
    ChatCompletionRequest,
    drop_default_no_ops,
    drop_unknown_nested_keys,
    find_request_violation,
    validate_request,
)
from tests.support.front import chat_body
from tests.support.json_values import NEARLY_REQUESTS
from tests.support.requests import forwarded, function_tool, read_refusal, refused_at

UNSUPPORTED = "UnsupportedChatParameter"
CONFLICT = "ChatRequestConflict"


def message_of(**more: Any) -> str:
    return read_refusal(chat_body(**more)).message


# Sampling values and sizes


@pytest.mark.rule("REQ-35", "REQ-11", "SMP-4")
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("temperature", [0, 2, 0.7, 2.0]),
        ("top_p", [0, 1, 0.5]),
        ("frequency_penalty", [-2, 2, 0]),
        ("presence_penalty", [-2, 2, 0.0]),
        ("seed", [0, -1, 2**63 - 1, -(2**63)]),
    ],
)
def test_values_within_their_range_are_forwarded_as_they_came(key: str, values: list[Any]) -> None:
    for value in values:
        sent = forwarded(**{key: value})["params"]
        assert sent == {key: value}
        assert type(sent[key]) is type(value)


@pytest.mark.rule("REQ-35", "REQ-40", "REQ-41", "ERR-37", "REQ-36", "REQ-37")
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("temperature", 2.5, "decimal above maximum value. Expected a value <= 2, but got 2.5 instead."),
        ("temperature", -1, "decimal below minimum value. Expected a value >= 0, but got -1 instead."),
        ("top_p", 1.01, "decimal above maximum value. Expected a value <= 1, but got 1.01 instead."),
        ("top_p", -0.5, "decimal below minimum value. Expected a value >= 0, but got -0.5 instead."),
        ("frequency_penalty", 3, "decimal above maximum value. Expected a value <= 2, but got 3 instead."),
        ("frequency_penalty", -2.5, "decimal below minimum value. Expected a value >= -2, but got -2.5 instead."),
        ("presence_penalty", 1e300, "decimal above maximum value. Expected a value <= 2, but got 1e+300 instead."),
        ("n", 0, "integer below minimum value. Expected a value >= 1, but got 0 instead."),
        ("n", 2, "integer above maximum value. Expected a value <= 1, but got 2 instead."),
        ("max_tokens", 0, "integer below minimum value. Expected a value >= 1, but got 0 instead."),
        ("max_completion_tokens", -1, "integer below minimum value. Expected a value >= 1, but got -1 instead."),
        ("max_tokens", 16385, "integer above maximum value. Expected a value <= 16384, but got 16385 instead."),
    ],
)
def test_a_value_out_of_range_is_refused_in_openais_words_and_by_its_key(key: str, value: Any, told: str) -> None:
    assert refused_at(**{key: value}) == (UNSUPPORTED, key)
    assert message_of(**{key: value}) == f"Invalid '{key}': {told}"


@pytest.mark.rule("REQ-38", "ERR-37")
def test_more_than_four_stops_are_refused_in_openais_words() -> None:
    assert refused_at(stop=["a"] * 5) == (UNSUPPORTED, "stop")
    assert message_of(stop=["a"] * 5) == (
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 "
        "instead."
    )


@pytest.mark.rule("REQ-39", "ERR-37")
def test_a_conversation_of_nothing_is_refused_in_openais_words() -> None:
    assert refused_at(messages=[]) == ("BadRequest", "messages")
    assert message_of(messages=[]) == (
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )


@pytest.mark.rule("REQ-42", "REQ-37", "DEV-1")
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [1, 15])
def test_a_limit_under_the_hordes_floor_is_refused_and_told_the_floor(key: str, value: int) -> None:
    assert refused_at(**{key: value}) == (UNSUPPORTED, key)
    assert "Expected a value >= 16" in message_of(**{key: value})


@pytest.mark.rule("REQ-43")
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [16, 16384])
def test_a_limit_within_its_range_is_forwarded_under_the_native_name(key: str, value: int) -> None:
    assert forwarded(**{key: value})["params"] == {"max_length": value}


@pytest.mark.rule("REQ-45", "SMP-4")
def test_without_a_limit_none_is_forwarded_so_that_the_horde_fills_in_its_own() -> None:
    assert "params" not in forwarded()


@pytest.mark.rule("REQ-44")
def test_both_limits_have_to_agree() -> None:
    assert forwarded(max_tokens=64, max_completion_tokens=64)["params"] == {"max_length": 64}
    assert refused_at(max_tokens=64, max_completion_tokens=65) == (CONFLICT, "max_completion_tokens")
    assert forwarded(max_tokens=64, max_completion_tokens=None)["params"] == {"max_length": 64}


@pytest.mark.parametrize(
    ("stop", "sent"),
    [("END", ["END"]), (["a", "b", "c", "d"], ["a", "b", "c", "d"]), ("", None), ([], None), ([""], None)],
)
def test_stops_are_forwarded_as_a_list_under_the_native_name(stop: Any, sent: list[str] | None) -> None:
    assert forwarded(stop=stop).get("params") == (None if sent is None else {"stop_sequence": sent})


@pytest.mark.rule("ERR-37")
@pytest.mark.parametrize(("stop", "path"), [("a" * 1025, "stop"), (["b", "a" * 1025], "stop[1]")])
def test_a_stop_longer_than_any_real_one_is_refused(stop: Any, path: str) -> None:
    assert refused_at(stop=stop) == (UNSUPPORTED, path)
    assert message_of(stop=stop) == (
        f"Invalid '{path}': string too long. Expected a string with maximum length 1024, but got a string with length "
        "1025 instead."
    )
    assert forwarded(stop="a" * 1024)["params"] == {"stop_sequence": ["a" * 1024]}


@pytest.mark.rule("REQ-11")
def test_null_counts_as_left_out_on_every_optional_key() -> None:
    keys = set(ChatCompletionRequest.model_fields) - {"messages", "model"}
    assert forwarded(**dict.fromkeys(keys)) == forwarded()


# Types


@pytest.mark.rule("ERR-37", "MSG-18")
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("temperature", "1", "expected a decimal, but got a string"),
        ("temperature", True, "expected a decimal, but got a boolean"),
        ("max_tokens", "64", "expected an integer, but got a string"),
        ("max_tokens", 64.5, "expected an integer, but got a decimal"),
        ("max_tokens", True, "expected an integer, but got a boolean"),
        ("seed", 1e30, "expected an integer, but got a decimal"),
        ("n", [], "expected an integer, but got an array"),
        ("stream", 1, "expected a boolean, but got an integer"),
        ("stop", 1, "expected a string or an array of strings, but got an integer"),
        ("messages", "hi", "expected an array, but got a string"),
        ("messages", {}, "expected an array, but got an object"),
        ("tools", {}, "expected an array, but got an object"),
        ("model", 7, "expected a string, but got an integer"),
        ("models", "a", "expected an array, but got a string"),
        ("stream_options", True, "expected an object, but got a boolean"),
        ("horde", "wait", "expected an object, but got a string"),
        ("parallel_tool_calls", "yes", "expected a boolean, but got a string"),
        ("user", 7, "expected a string, but got an integer"),
        ("metadata", [], "expected an object, but got an array"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_bad_request_that_names_both(key: str, value: Any, expected: str) -> None:
    assert refused_at(**{key: value}) == ("BadRequest", key)
    assert message_of(**{key: value}) == f"Invalid type for '{key}': {expected} instead."


@pytest.mark.rule("MSG-1", "MSG-18")
@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        (7, "messages[0]", "Invalid type for 'messages[0]': expected an object, but got an integer instead."),
        (None, "messages[0]", "Invalid type for 'messages[0]': expected an object, but got null instead."),
        ({"content": "Hi"}, "messages[0].role", "Missing required parameter: 'messages[0].role'."),
        ({"role": None}, "messages[0].role", "Missing required parameter: 'messages[0].role'."),
        ({"role": "user"}, "messages[0].content", "Missing required parameter: 'messages[0].content'."),
    ],
)
def test_what_is_no_message_says_what_it_lacks(message: Any, param: str, told: str) -> None:
    assert refused_at(messages=[message]) == ("BadRequest", param)
    assert message_of(messages=[message]) == told


# Models


@pytest.mark.rule("REQ-23", "REQ-34")
def test_one_model_travels_as_a_list_of_one() -> None:
    assert forwarded(model="org/sub/name")["models"] == ["org/sub/name"]


@pytest.mark.rule("REQ-26")
def test_several_models_are_forwarded_in_their_order() -> None:
    models = ["e", "a/b", "c", "d", "b"]
    assert forwarded(model=None, models=models)["models"] == models


@pytest.mark.rule("REQ-24", "REQ-25", "REQ-27", "REQ-28", "REQ-29")
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"models": ["b"]}, CONFLICT, "models"),
        ({"model": None}, "BadRequest", "model"),
        ({"model": None, "models": ["a", "b", "a"]}, "BadRequest", "models[2]"),
        ({"model": None, "models": list("abcdef")}, UNSUPPORTED, "models"),
        ({"model": None, "models": ["a", ""]}, UNSUPPORTED, "models[1]"),
        ({"model": None, "models": []}, UNSUPPORTED, "models"),
        ({"model": None, "models": ["a", None]}, "BadRequest", "models[1]"),
        ({"model": ""}, UNSUPPORTED, "model"),
        ({"model": "a\0"}, "BadRequest", "model"),
        ({"model": None, "models": ["a", "b\0"]}, "BadRequest", "models[1]"),
        ({"model": "m" * 256}, UNSUPPORTED, "model"),
    ],
)
def test_a_list_of_models_keeps_its_rules(body: dict[str, Any], code: str, param: str) -> None:
    assert refused_at(**body) == (code, param)


@pytest.mark.rule("REQ-30", "ERR-14")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "a/b:free"}, "model"),
        ({"model": ":"}, "model"),
        ({"model": None, "models": ["a", "b:free", "c:free"]}, "models[1]"),
    ],
)
def test_a_variant_is_a_model_that_does_not_exist(body: dict[str, Any], param: str) -> None:
    error = read_refusal(chat_body(**body))
    assert (error.status, error.code, error.param) == (404, "model_not_found", param)


# Objects that refuse what they do not know


@pytest.mark.rule("REQ-10", "REQ-20", "REQ-21", "HOR-3", "FMT-3")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"response_format": {"type": "text", "further": 1}}, "response_format.further"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": {}, "schema_": {}}}},
            "response_format.json_schema.schema_",
        ),
        ({"horde": {"dry_run": True}}, "horde.dry_run"),
        ({"horde": {"operation_key": "k"}}, "horde.operation_key"),
        ({"horde": {"workers": {"except": []}}}, "horde.workers.except"),
    ],
)
def test_an_unknown_key_inside_an_option_is_refused_at_its_path(body: dict[str, Any], param: str) -> None:
    assert refused_at(**body) == (UNSUPPORTED, param)
    assert message_of(**body) == f"Unknown parameter: '{param}'."


@pytest.mark.rule("REQ-22")
@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": None}, {"include_usage": True}, {"include_usage": False}]
)
def test_stream_options_are_the_fronts_own(options: Any) -> None:
    assert forwarded(stream=True, stream_options=options) == forwarded()


@pytest.mark.parametrize("key", ["horde", "metadata", "stream_options", "response_format"])
def test_an_object_of_thousands_of_keys_is_refused_as_one(key: str) -> None:
    crowd = {f"k{number}": "v" for number in range(1000)}
    assert refused_at(**{key: crowd}) == (UNSUPPORTED, key)
    assert message_of(**{key: crowd}).startswith(f"Invalid '{key}': object has too many properties. Expected")


# The Horde's own options


OPTIONS: dict[str, list[Any]] = {
    "include_reasoning": [True, False],
    "availability_mode": ["wait", "fail_fast"],
    "openai_guards": [True, False],
    "conformance": ["strict", "best_effort"],
    "context_fit": ["truncate_oldest", "grow", "reject"],
    "max_context_length": [1, 4096],
    "max_kudos": [1, 10_000],
    "workers": [{"only": ["w1"]}, {"ignore": ["w1", "w2"]}],
    "trusted_workers": [True, False],
    "slow_workers": [True, False],
}
OF_THE_FRONT = {"include_reasoning", "availability_mode"}


@pytest.mark.rule("HOR-1", "HOR-2", "HOR-4", "HOR-5", "HOR-6", "HOR-7", "HOR-9", "KUD-1", "KUD-2", "KUD-17")
@pytest.mark.parametrize("key", sorted(OPTIONS))
def test_each_option_reaches_the_horde_or_stays_in_the_front(key: str) -> None:
    for value in OPTIONS[key]:
        native = forwarded(horde={key: value})
        if key in OF_THE_FRONT:
            assert native == forwarded()
        elif key == "max_context_length":
            assert native["params"] == {key: value}
        else:
            assert native[key] == value
    assert forwarded(horde={key: None}) == forwarded()


@pytest.mark.rule("HOR-7", "KUD-1", "HOR-2")
@pytest.mark.parametrize(
    ("option", "param"),
    [
        ({"include_reasoning": "no"}, "horde.include_reasoning"),
        ({"availability_mode": "later"}, "horde.availability_mode"),
        ({"openai_guards": 1}, "horde.openai_guards"),
        ({"conformance": "loose"}, "horde.conformance"),
        ({"context_fit": "ignore"}, "horde.context_fit"),
        ({"max_context_length": 0}, "horde.max_context_length"),
        ({"max_context_length": 2**40}, "horde.max_context_length"),
        ({"max_kudos": 0}, "horde.max_kudos"),
        ({"max_kudos": -5}, "horde.max_kudos"),
        ({"max_kudos": 1.5}, "horde.max_kudos"),
        ({"max_kudos": "10"}, "horde.max_kudos"),
        ({"max_kudos": True}, "horde.max_kudos"),
        ({"workers": ["w1"]}, "horde.workers"),
        ({"workers": {"only": "w1"}}, "horde.workers.only"),
        ({"workers": {"only": []}}, "horde.workers.only"),
        ({"workers": {"only": ["w1", 2]}}, "horde.workers.only[1]"),
        ({"workers": {"ignore": ["w"] * 33}}, "horde.workers.ignore"),
        ({"trusted_workers": "yes"}, "horde.trusted_workers"),
        ({"slow_workers": 0}, "horde.slow_workers"),
    ],
)
def test_an_option_of_another_value_is_refused_at_its_path(option: dict[str, Any], param: str) -> None:
    code, path = refused_at(horde=option)
    assert code in {"BadRequest", UNSUPPORTED}
    assert path == param


# Reasoning effort, formats, tools


@pytest.mark.rule("RSN-6", "REQ-12")
@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
def test_a_reasoning_effort_is_forwarded_unchanged(effort: str) -> None:
    assert forwarded(reasoning_effort=effort)["params"] == {"reasoning_effort": effort}


@pytest.mark.rule("RSN-7")
@pytest.mark.parametrize("effort", ["max", "", "None", 1, {"effort": "low"}])
def test_any_other_reasoning_effort_is_a_bad_request(effort: Any) -> None:
    assert refused_at(reasoning_effort=effort) == ("BadRequest", "reasoning_effort")


@pytest.mark.rule("FMT-1", "FMT-4", "REQ-13")
@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "r", "schema": {"x": [None, 1.0]}, "strict": None}},
    ],
)
def test_a_format_is_forwarded_verbatim(response_format: dict[str, Any]) -> None:
    assert forwarded(response_format=response_format)["response_format"] == response_format


@pytest.mark.rule("FMT-2")
def test_a_named_format_needs_its_schema() -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "r"}}
    assert refused_at(response_format=wrong) == ("BadRequest", "response_format.json_schema.schema")


@pytest.mark.rule("TOO-1")
def test_more_tools_than_served_are_refused_in_openais_words() -> None:
    tools = [function_tool(f"f{number}") for number in range(129)]
    assert len(forwarded(tools=tools[:128])["tools"]) == 128
    assert refused_at(tools=tools) == (UNSUPPORTED, "tools")
    assert message_of(tools=tools) == (
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129 "
        "instead."
    )


@pytest.mark.rule("TOO-2", "MSG-18")
def test_a_tools_path_is_written_as_openai_writes_it() -> None:
    assert refused_at(tools=[function_tool(), function_tool("a b")]) == (UNSUPPORTED, "tools[1].function.name")
    assert refused_at(tools=[function_tool(parameters=[])]) == ("BadRequest", "tools[0].function.parameters")


@pytest.mark.rule("REQ-15")
@pytest.mark.parametrize(
    "body", [{"user": "u" * 512}, {"metadata": {"k": "v"}}, {"stream": True}, {"stream": False}, {"n": 1}]
)
def test_keys_for_the_front_alone_are_accepted_and_not_forwarded(body: dict[str, Any]) -> None:
    assert forwarded(**body) == forwarded()


# The shared rules, and any request whatever


@pytest.mark.rule("REQ-49", "REQ-3", "HOR-5")
def test_the_shared_rules_come_after_validation() -> None:
    broken = {"tool_choice": "auto", "temperature": 9}
    assert refused_at(**broken) == (UNSUPPORTED, "temperature")
    assert refused_at(tool_choice="auto") == (CONFLICT, "tool_choice")
    assert refused_at(response_format={"type": "json_object"}, horde={"openai_guards": True}) == (CONFLICT, "messages")


@pytest.mark.rule("REQ-50", "REQ-51", "TOO-8")
@pytest.mark.parametrize("key", ["tool_choice", "parallel_tool_calls"])
@pytest.mark.parametrize("tools", [None, []])
def test_an_empty_list_of_tools_leaves_what_stands_beside_it_in_conflict(key: str, tools: Any) -> None:
    value = "auto" if key == "tool_choice" else False
    assert refused_at(tools=tools, **{key: value}) == (CONFLICT, key)
    assert f"Leave out '{key}'" in message_of(tools=tools, **{key: value})


@given(NEARLY_REQUESTS)
def test_any_request_is_valid_or_has_one_violation_with_a_short_message(body: dict[str, Any]) -> None:
    screened = drop_unknown_nested_keys(drop_default_no_ops(body))
    outcome = validate_request(screened)
    if not isinstance(outcome, ContractViolation):
        violation = find_request_violation(outcome, screened)
        assert violation is None or violation.param
        return
    assert outcome.param
    assert 0 < len(outcome.message) < 2000


def test_a_path_of_a_clients_own_keys_is_cut() -> None:
    for body in ({"metadata": {"k" * 100_000: 1}}, {"horde": {"k" * 100_000: 1}}):
        error = read_refusal(chat_body(**body))
        assert len(error.param or "") + len(error.message) < 1000


def test_more_metadata_than_openai_takes_is_refused_in_its_words() -> None:
    assert refused_at(metadata={f"k{number}": "v" for number in range(17)}) == (UNSUPPORTED, "metadata")
    assert message_of(metadata={f"k{number}": "v" for number in range(17)}) == (
        "Invalid 'metadata': object has too many properties. Expected an object with at most 16 properties, but got an "
        "object with 17 properties instead."
    )
