"""What must hold for every life of a chat request, whatever its script."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from horde.oai.errors import ERROR_TABLE, FrontCode, error_type
from tests.support.front_life import BUDGETS, Life, LifeScript

__all__ = ["Answer", "check_life", "read_answer"]

WRITE_TIMEOUT_SECONDS = 30.0
_SPARE_SECONDS = 14.0
"""After the budget: the last read (2), the cancel (5), the model list of an error (5), the last deltas (1)."""


@dataclass(slots=True)
class Answer:
    """What the client holds.

    Attributes:
        status: HTTP status, None when nothing came.
        complete: The response was ended.
        chunks: The chunks of a stream, or the one completion.
        error: The envelope's inside.
        done: How often ``[DONE]`` came.
        text: The reply's text as far as it came.
    """

    status: int | None = None
    complete: bool = False
    chunks: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    done: int = 0
    text: str = ""
    reasoning: str = ""
    finished: int = 0
    usages: int = 0
    completion: dict[str, Any] | None = None


def read_answer(life: Life) -> Answer:
    """Read what was sent, and check that it is one well-formed response: nothing after an ending."""
    answer = Answer()
    is_stream = False
    for _, message in life.messages:
        if message["type"] == "http.response.start":
            assert answer.status is None, "a second response"
            answer.status = message["status"]
            is_stream = dict(message["headers"])[b"content-type"].startswith(b"text/event-stream")
            continue
        assert answer.status is not None, "a body before its headers"
        assert not answer.complete, "something was sent after the ending"
        answer.complete = not message.get("more_body", False)
        if is_stream:
            _read_events(message["body"], answer)
        else:
            _read_whole(orjson.loads(message["body"]), answer)
    return answer


def _read_whole(body: dict[str, Any], answer: Answer) -> None:
    if "error" in body:
        answer.error = body["error"]
    else:
        answer.completion = body
        message = body["choices"][0]["message"]
        answer.text = message["content"] or ""
        answer.reasoning = message.get("reasoning_content") or ""
        answer.finished, answer.usages = 1, 1


def _read_events(body: bytes, answer: Answer) -> None:
    for event in body.split(b"\n\n"):
        if not event:
            continue
        assert answer.done == 0, "an event after [DONE]"
        if event.startswith(b": "):
            assert answer.finished == 0, "a keepalive after the finish"
        elif event == b"data: [DONE]":
            answer.done += 1
        else:
            assert answer.error is None, "a chunk after the error"
            _read_chunk(orjson.loads(event.removeprefix(b"data: ")), answer)


def _read_chunk(chunk: dict[str, Any], answer: Answer) -> None:
    if "error" in chunk:
        assert "choices" not in chunk
        assert answer.finished == 0, "an error after the finish"
        answer.error = chunk["error"]
        return
    answer.chunks.append(chunk)
    if not chunk["choices"]:
        answer.usages += 1
        return
    choice = chunk["choices"][0]
    answer.text += choice["delta"].get("content") or ""
    answer.reasoning += choice["delta"].get("reasoning_content") or ""
    answer.finished += choice["finish_reason"] is not None


def check_life(script: LifeScript, life: Life) -> Answer:
    """Check every invariant, and return what the client holds."""
    answer = read_answer(life)
    assert life.left_behind == []
    _check_one_ending(script, life, answer)
    _check_horde(life, answer)
    _check_text(life, answer)
    if answer.error is not None:
        _check_error(script, life, answer, answer.error)
    if answer.finished:
        _check_reply(script, life, answer)
    _check_time(script, life)
    return answer


def _check_one_ending(script: LifeScript, life: Life, answer: Answer) -> None:
    if answer.status == 200 and script.stream:
        assert answer.done == int(answer.complete), "the response ends with [DONE]"
        assert {chunk["id"] for chunk in answer.chunks} <= {answer.chunks[0]["id"]} if answer.chunks else True
        if answer.chunks:
            assert answer.chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
            assert sum("role" in chunk["choices"][0]["delta"] for chunk in answer.chunks if chunk["choices"]) == 1
    endings = answer.finished + (answer.error is not None)
    if life.left_at is None and script.read_seconds < WRITE_TIMEOUT_SECONDS:
        assert answer.complete, "the client waits for ever"
    assert endings == int(answer.complete), "exactly one ending"


def _check_horde(life: Life, answer: Answer) -> None:
    """One request at most; a cancel for each that was given up, none for one that was delivered."""
    requests = list(life.horde.requests.values())
    assert len(requests) <= 1, "more than one request on the Horde"
    cancels = [call for call in life.horde.calls if call.method == "DELETE"]
    if life.live_at_last:
        told = [call for call in cancels if call.fate != "refused"]
        assert cancels, "a request was given up and not cancelled"
        assert life.stopped_at is not None or len(told) < len(cancels), "a cancel was given up"
    ended_by_itself = answer.finished or (answer.error or {}).get("code") == FrontCode.FAULTED
    if ended_by_itself and answer.complete:
        last = max(moment for moment, _ in life.messages)
        assert all(call.at <= last for call in cancels), "a request that ended was cancelled"
    # A front that stops does not wait for a slow answer.
    heard = {"ok", "malformed"} | (set() if life.stopped_at is not None else {"slow"})
    acknowledged = [call for call in cancels if call.fate in heard]
    assert len(acknowledged) <= 1, "a cancel was sent again after its answer"


def _check_text(life: Life, answer: Answer) -> None:
    """What was shown is the beginning of what one attempt made, however it ended."""
    made = [("", "")]
    for request in life.horde.requests.values():
        made += request.attempts.values()
        if request.reply is not None:
            message = request.reply["message"]
            made.append((message["content"] or "", message["reasoning_content"] or ""))
    fits = [text.startswith(answer.text) and thought.startswith(answer.reasoning) for text, thought in made]
    assert any(fits), "text that no attempt made"


def _check_reply(script: LifeScript, life: Life, answer: Answer) -> None:
    (request,) = life.horde.requests.values()
    assert request.reply is not None, "a reply that nobody made"
    message = request.reply["message"]
    assert answer.status == 200
    assert answer.finished == 1
    assert answer.text == (message["content"] or "")
    expected = (message["reasoning_content"] or "") if script.reasoning else ""
    assert answer.reasoning == expected
    if script.stream:
        assert answer.usages == int(script.usage)
        if script.usage:
            _check_usage(answer.chunks[-1]["usage"])
        assert request.id in answer.chunks[0]["id"]
    elif answer.completion is not None:
        _check_usage(answer.completion["usage"])


def _check_usage(usage: Mapping[str, Any]) -> None:
    assert usage["prompt_tokens"] == 12
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == 16


def _check_error(script: LifeScript, life: Life, answer: Answer, error: dict[str, Any]) -> None:
    """The envelope is valid and its code is true."""
    assert set(error) == {"message", "type", "param", "code", "metadata"}
    code, streamed = error["code"], script.stream and answer.status == 200
    assert code != FrontCode.INTERNAL
    if code in FrontCode and not streamed:
        assert answer.status == ERROR_TABLE[FrontCode(code)].status
    assert error["type"] == ("api_error" if streamed else error_type(answer.status or 0))
    ever = {state for request in life.horde.requests.values() for state in request.ever}
    kinds = {step.kind for step in script.steps}
    elapsed = life.messages[-1][0] - life.began
    untrue = not life.honest or not life.whole_posts or bool(kinds & {"requeue", "fault", "cancel", "stop"})
    reasons: dict[str, bool] = {
        FrontCode.FAULTED: "faulted" in ever,
        FrontCode.NO_GENERATION: "cancelled" in ever,
        FrontCode.REQUEST_TIMEOUT: elapsed >= BUDGETS[script.stream],
        FrontCode.DIVERGED: bool(answer.text or answer.reasoning) and untrue,
        FrontCode.SHUTTING_DOWN: life.stopped_at is not None,
        FrontCode.NO_ELIGIBLE_WORKER: "impossible" in kinds and elapsed >= 15,
        FrontCode.NO_WORKER_SUPPORTS_FEATURES: "gap" in kinds,
        FrontCode.QUEUE_UNAVAILABLE: script.fail_fast,
        FrontCode.HORDE_UNAVAILABLE: bool(set(script.submits) - {"ok", "slow"}),
        "RequestNotFound": "refused" in {*script.submits, *script.reads} or "forget" in kinds,
        "MaintenanceMode": "later" in script.submits,
        "ChatOperationCancelled": bool(script.submits),
    }
    assert reasons.get(code, False), f"{code} is not why it ended"


def _check_time(script: LifeScript, life: Life) -> None:
    reading = script.read_seconds * len(life.messages)
    assert life.ended - life.began <= BUDGETS[script.stream] + _SPARE_SECONDS + reading
    if life.left_at is not None and life.left_at >= life.began:
        assert life.ended <= max(life.left_at, life.began) + 8.0, "a request outlived its client"
    if life.stopped_at is not None:
        assert life.ended <= max(life.stopped_at, life.began) + 2.0 + 8.0 + reading, "a request outlived its front"
    outage = any(step.kind.startswith("redis") for step in script.steps)
    signalled = script.redis and not outage and all(step.signals for step in script.steps)
    if signalled and life.replied_at is not None and set(script.reads) <= {"ok", "slow"} and not script.submits:
        assert life.ended <= life.replied_at + 3.1 * (len(script.reads) + 1) + reading, "a signal was slept over"
