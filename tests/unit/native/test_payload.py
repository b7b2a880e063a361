from typing import Any

import orjson
import pytest
from horde_sdk.generation_parameters.text.chat_limits import CHAT_SAMPLING_DEFAULTS
from horde_sdk.worker.chat_declaration import ChatJobPayload

from horde.native.payload import build_payload, count_images, narrow_tools, with_members

_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


def _payload(params: dict[str, Any] | None = None, **narrowed: object) -> dict[str, Any]:
    return build_payload(
        [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        narrowed=narrowed,
        params=params or {},
        max_length=512,
        max_context_length=4096,
    )


@pytest.mark.rule("SMP-1", "SMP-2", "SMP-3", "SMP-5")
def test_a_job_carries_every_sampling_value_and_nothing_that_was_not_sent() -> None:
    payload = _payload()
    assert {key: payload[key] for key in CHAT_SAMPLING_DEFAULTS} == dict(CHAT_SAMPLING_DEFAULTS)
    assert {"stop_sequence", "seed", "reasoning_effort"}.isdisjoint(payload)


def test_sent_values_stand_over_the_defaults_and_null_does_not() -> None:
    payload = _payload({"temperature": 0.2, "top_p": None, "seed": 7, "stop_sequence": ["\n"]})
    assert (payload["temperature"], payload["top_p"]) == (0.2, 1.0)
    assert (payload["seed"], payload["stop_sequence"]) == (7, ["\n"])


@pytest.mark.rule("MSG-19")
def test_a_developer_message_reaches_the_worker_as_system() -> None:
    assert _payload()["messages"][0] == {"role": "system", "content": "Be kind."}


@pytest.mark.rule("TOO-18")
def test_under_tool_choice_none_no_tool_key_is_sent() -> None:
    assert narrow_tools({"tools": _TOOLS, "tool_choice": "none", "parallel_tool_calls": True}) == {}


@pytest.mark.rule("TOO-19")
def test_a_forced_function_is_that_one_tool_with_required() -> None:
    choice = {"type": "function", "function": {"name": "g"}}
    assert narrow_tools({"tools": _TOOLS, "tool_choice": choice}) == {"tools": [_TOOLS[1]], "tool_choice": "required"}


@pytest.mark.rule("TOO-4", "TOO-7")
def test_tools_are_forwarded_unchanged_with_parallel_tool_calls() -> None:
    body = {"tools": _TOOLS, "parallel_tool_calls": False}
    assert narrow_tools(body) == {"tools": _TOOLS, "parallel_tool_calls": False}


def test_the_text_format_is_no_format() -> None:
    assert narrow_tools({"response_format": {"type": "text"}}) == {}
    assert narrow_tools({"response_format": {"type": "json_object"}}) == {"response_format": {"type": "json_object"}}


def test_a_worker_reads_the_payload_with_the_sdk() -> None:
    stored = orjson.dumps(_payload({"seed": 1}, tools=_TOOLS, tool_choice="required"))
    payload = orjson.loads(with_members(stored, {"stream_progress": True}))
    job = ChatJobPayload.from_pop({"id": "j", "model": "m", "chat": True, "payload": payload})
    assert (job.max_length, job.max_context_length, job.seed, job.tool_choice) == (512, 4096, 1, "required")
    assert payload["stream_progress"] is True


def test_members_are_added_without_reading_the_object() -> None:
    assert with_members(b'{"a":1}', {}) == b'{"a":1}'
    assert orjson.loads(with_members(b'{"a":1}', {"b": 2, "c": "x"})) == {"a": 1, "b": 2, "c": "x"}


def test_images_are_counted_over_all_messages() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    text = {"type": "text", "text": "x"}
    assert count_images([{"content": [image, text]}, {"content": "x"}, {"content": [image]}]) == 2
