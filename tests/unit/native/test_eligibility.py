from dataclasses import replace
from uuid import UUID

import orjson
import pytest

from horde.native.eligibility import RequestNeeds, WorkerFacts, is_eligible, passed_over_causes, service_gap

_NEEDS = RequestNeeds(models=("m",), needs=frozenset({"seed"}), max_length=512, max_context_length=4096)
_WORKER = WorkerFacts(
    id=UUID(int=1), model_id="m", features=frozenset({"seed", "tools"}), max_length=512, max_context_length=4096
)


@pytest.mark.parametrize(
    ("worker", "needs", "cause"),
    [
        ({"model_id": "other"}, {}, "models"),
        ({"model_id": None}, {}, "models"),
        ({"features": frozenset()}, {}, "missing_declarations"),
        ({"max_length": 511}, {}, "max_length"),
        ({"max_context_length": 4095}, {}, "max_context_length"),
        ({"tools_max_temperature": 0.5}, {"tools_temperature": 0.6}, "tools_max_temperature"),
        ({}, {"needs_images": True}, "missing_declarations"),
        ({}, {"only_workers": frozenset({UUID(int=2)})}, "worker_id"),
        ({}, {"ignore_workers": frozenset({UUID(int=1)})}, "worker_id"),
        ({}, {"trusted_only": True}, "untrusted"),
        ({}, {"fast_only": True}, "performance"),
        ({"maintenance": True}, {}, "maintenance"),
    ],
)
@pytest.mark.rule("NAT-13", "CNF-7", "CNF-8")
def test_each_cause_by_which_a_worker_is_passed_over(
    worker: dict[str, object], needs: dict[str, object], cause: str
) -> None:
    changed_worker = replace(_WORKER, **worker)  # type: ignore[arg-type] # fields of several types
    changed_needs = replace(_NEEDS, **needs)  # type: ignore[arg-type] # fields of several types
    assert passed_over_causes(_WORKER, _NEEDS) == frozenset()
    assert passed_over_causes(changed_worker, changed_needs) == {cause}
    assert not is_eligible(changed_worker, changed_needs)


def test_a_cap_on_the_temperature_counts_with_tools_alone() -> None:
    assert is_eligible(replace(_WORKER, tools_max_temperature=0.1), _NEEDS)


@pytest.mark.rule("NAT-4", "NEW-20")
def test_a_gap_names_what_no_worker_declares() -> None:
    needs = replace(_NEEDS, needs=frozenset({"seed", "json_schema"}))
    gap = service_gap([_WORKER, replace(_WORKER, features=frozenset())], needs)
    assert gap is not None
    assert (gap.kind, gap.missing_declarations, gap.exceeded_limits) == ("declaration_gap", ("json_schema",), ())


def test_a_gap_names_the_limits_that_every_worker_puts_lower() -> None:
    needs = replace(_NEEDS, max_length=1000, max_context_length=5000)
    gap = service_gap([_WORKER, replace(_WORKER, max_context_length=9000)], needs)
    assert gap is not None
    assert gap.exceeded_limits == ("max_length",)


def test_when_each_worker_lacks_something_else_the_one_that_lacks_least_speaks() -> None:
    needs = replace(_NEEDS, needs=frozenset({"seed", "tools"}))
    without_seed = replace(_WORKER, features=frozenset({"tools"}))
    short = replace(_WORKER, max_length=100, max_context_length=100)
    gap = service_gap([short, without_seed], needs)
    assert gap is not None
    assert (gap.missing_declarations, gap.exceeded_limits) == (("seed",), ())


def test_there_is_no_gap_when_one_worker_serves_or_restrictions_leave_nobody() -> None:
    assert service_gap([replace(_WORKER, features=frozenset()), _WORKER], _NEEDS) is None
    assert service_gap([], _NEEDS) is None
    elsewhere = replace(_NEEDS, only_workers=frozenset({UUID(int=9)}), needs=frozenset({"json_schema"}))
    assert service_gap([_WORKER], elsewhere) is None


@pytest.mark.rule("NAT-5")
def test_a_worker_that_sees_and_cannot_receive_images_lacks_a_transport() -> None:
    needs = replace(_NEEDS, needs=frozenset({"vision"}), needs_images=True)
    worker = replace(_WORKER, features=frozenset({"vision"}), image_transports=frozenset({"messages_url"}))
    gap = service_gap([worker], needs)
    assert gap is not None
    assert gap.missing_declarations == ("image_transports",)
    assert service_gap([replace(worker, image_transports=frozenset({"url"}))], needs) is None


def test_needs_travel_to_other_processes_unchanged() -> None:
    needs = replace(
        _NEEDS, only_workers=frozenset({UUID(int=1)}), failed_workers=frozenset({UUID(int=2)}), tools_temperature=0.5
    )
    assert RequestNeeds.from_fields(orjson.loads(orjson.dumps(needs.to_fields()))) == needs
