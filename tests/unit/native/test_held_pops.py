from dataclasses import replace
from uuid import UUID

from horde.native.eligibility import RequestNeeds, WorkerFacts
from horde.native.held_pops import HeldPops
from horde.native.publish import Publisher

_NEEDS = RequestNeeds(models=("m",), needs=frozenset(), max_length=1, max_context_length=1)
_WORKER = WorkerFacts(id=UUID(int=1), model_id="m", features=frozenset(), max_length=1, max_context_length=1)


async def test_a_request_wakes_the_longest_waiting_pop_that_fits_and_no_other() -> None:
    pops = HeldPops()
    with (
        pops.hold(replace(_WORKER, model_id="other")) as other,
        pops.hold(_WORKER) as first,
        pops.hold(_WORKER) as second,
    ):
        assert pops.wake(_NEEDS)
        assert (other.woken.is_set(), first.woken.is_set(), second.woken.is_set()) == (False, True, False)
        assert pops.wake(_NEEDS)
        assert second.woken.is_set()
        assert not pops.wake(_NEEDS)
    assert len(pops) == 0


async def test_a_worker_that_failed_the_request_is_woken_last() -> None:
    pops = HeldPops()
    needs = replace(_NEEDS, failed_workers=frozenset({_WORKER.id}))
    with pops.hold(_WORKER) as failed, pops.hold(replace(_WORKER, id=UUID(int=2))) as fresh:
        await pops.announce(needs, Publisher(None))
        assert (failed.woken.is_set(), fresh.woken.is_set()) == (False, True)
        await pops.announce(needs, Publisher(None))
        assert failed.woken.is_set()


async def test_shutdown_wakes_everyone() -> None:
    pops = HeldPops()
    with pops.hold(_WORKER) as one, pops.hold(_WORKER) as two:
        pops.wake_all()
        assert one.woken.is_set()
        assert two.woken.is_set()
