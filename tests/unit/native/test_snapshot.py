from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from horde.native.eligibility import RequestNeeds, WorkerFacts
from horde.native.snapshot import ModelLoad, QueueView, count_queue

_NEEDS = RequestNeeds(models=("a",), needs=frozenset({"tools"}), max_length=100, max_context_length=100)


def _counts(*queue: tuple[int, list[str], int]) -> dict[str, Any]:
    shape = replace(_NEEDS, models=("a", "b")).to_fields()
    return {
        "queue": [[str(UUID(int=number)), models, length, 0] for number, models, length in queue],
        "shapes": [shape],
        "running": {"a": 2},
        "speeds": {"a": [4, 25.0], "b": [1, None]},
    }


@pytest.mark.rule("FFA-12", "NAT-7")
def test_a_request_reads_zero_until_it_is_in_a_snapshot() -> None:
    view = QueueView()
    assert (view.position(UUID(int=1)), view.wait_seconds(UUID(int=1)), view.jobs(["a"])) == (0, 0, 0)


@pytest.mark.rule("FFA-16")
def test_positions_are_by_model_and_waits_by_the_whole_hordes_throughput() -> None:
    view = count_queue(_counts((1, ["a"], 1000), (2, ["b"], 110), (3, ["a", "b"], 100), (4, ["a"], 100)))

    assert [view.position(UUID(int=number)) for number in (1, 2, 3, 4)] == [1, 1, 2, 3]
    # 4 threads of 25 tokens a second and one of nobody's measure, which counts as 10.
    assert [view.wait_seconds(UUID(int=number)) for number in (1, 2, 3, 4)] == [0, 9, 10, 11]
    assert view.load("a") == ModelLoad(3, 1200, 2, 4, 25.0)
    assert view.jobs(["a", "b", "a"]) == 3 + 2 + 2


def test_a_pop_is_told_by_which_causes_it_was_passed_over() -> None:
    view = count_queue(_counts((1, ["a"], 10), (2, ["a"], 10)))
    worker = WorkerFacts(id=UUID(int=1), model_id="a", features=frozenset(), max_length=10, max_context_length=100)
    assert view.skipped(worker) == {"missing_declarations": 2, "max_length": 2}
    assert view.skipped(replace(worker, model_id="c")) == {"models": 2}
