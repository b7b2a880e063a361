from typing import Any

import pytest
from horde_sdk.worker.chat_declaration import ChatBackendFacts

from horde.worker.backends.base import BackendProfile
from horde.worker.declaration import OperatorLimits, build_offer
from horde.worker.job import UnusableJobError, read_job
from tests.support.scripted_pops import chat_job

OFFER = build_offer(
    BackendProfile(
        kind="scripted",
        model_name="SmolLM2-135M-Instruct",
        window=4096,
        slots=1,
        counts_prompts=True,
        facts=ChatBackendFacts(refuses_prompt_overflow=True),
    ),
    OperatorLimits(),
)


def test_a_job_is_read_with_its_pace() -> None:
    job = read_job(chat_job("Hi", job_id="job-x", stream_progress=True, interval_seconds=2.0), OFFER)
    assert job is not None
    assert (job.id, job.live, job.pacing.interval_seconds) == ("job-x", True, 2.0)
    assert job.payload.messages == ({"role": "user", "content": "Hi"},)


@pytest.mark.rule("WRK-2")
def test_a_job_without_stream_progress_wants_no_live_text() -> None:
    job = read_job(chat_job(), OFFER)
    assert job is not None
    assert not job.live


def test_an_empty_pop_is_no_job() -> None:
    assert read_job({"id": None, "skipped": {"max_length": 1}}, OFFER) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": "Hi"},
        {"messages": []},
        {"messages": ["Hi"]},
        {"messages": None},
        {"max_length": "64"},
        {"max_length": 0},
        {"max_length": 1025},
        {"temperature": "hot"},
        {"temperature": True},
        {"seed": 1.5},
        {"seed": 7},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": 7},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "yaml"}},
        {"tool_choice": 7, "tools": [7]},
    ],
)
def test_a_job_that_cannot_be_served_is_refused_with_its_id_for_the_fault(changes: dict[str, Any]) -> None:
    with pytest.raises(UnusableJobError) as caught:
        read_job(chat_job(job_id="job-x", **changes), OFFER)
    assert caught.value.job_id == "job-x"


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"chat": False}, {"payload": None}, {"payload": []}, {"payload": {}}]
)
def test_a_pop_for_something_else_is_refused_with_its_id(change: dict[str, Any]) -> None:
    with pytest.raises(UnusableJobError) as caught:
        read_job(chat_job(job_id="job-x") | change, OFFER)
    assert caught.value.job_id == "job-x"


@pytest.mark.parametrize("job_id", [7, "", "x" * 200, ["job"]])
def test_a_job_without_a_usable_id_cannot_even_be_faulted(job_id: object) -> None:
    with pytest.raises(UnusableJobError) as caught:
        read_job(chat_job() | {"id": job_id}, OFFER)
    assert caught.value.job_id is None
