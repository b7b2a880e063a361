"""The rule of eligibility stands twice, as SQL and in Python: both say the same of every worker and request."""

from typing import Any
from uuid import UUID

import asyncpg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horde.native.db.eligibility_sql import serves
from horde.native.eligibility import RequestNeeds, WorkerFacts, is_eligible

_DECLARATIONS = ("seed", "tools", "vision")
_TRANSPORTS = ("url", "base64", "messages_url")
_IDS = st.integers(1, 4).map(lambda number: UUID(int=number))
_SIZES = st.integers(1, 3)
_TEMPERATURES = st.none() | st.sampled_from([0.0, 0.5, 1.0])

_WORKERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "id": _IDS,
        "features": st.sets(st.sampled_from(_DECLARATIONS)).map(sorted),
        "image_transports": st.sets(st.sampled_from(_TRANSPORTS)).map(sorted),
        "max_length": _SIZES,
        "max_context_length": _SIZES,
        "tools_max_temperature": _TEMPERATURES,
        "maintenance": st.booleans(),
        "trusted": st.booleans(),
        "tokens_per_second": st.none() | st.sampled_from([4.9, 5.0]),
    }
)
_REQUESTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "needs": st.sets(st.sampled_from(_DECLARATIONS)).map(sorted),
        "needs_images": st.booleans(),
        "max_length": _SIZES,
        "max_context_length": _SIZES,
        "tools_temperature": _TEMPERATURES,
        "only_workers": st.none() | st.lists(_IDS, min_size=1, max_size=2),
        "ignore_workers": st.lists(_IDS, max_size=2),
        "trusted_only": st.booleans(),
        "fast_only": st.booleans(),
        "failed_workers": st.lists(_IDS, max_size=2),
    }
)

_QUERY = f"""
SELECT {serves("w", "w", "q", fast_limit="5")} FROM
(SELECT $1::uuid AS id, $2::text[] AS features, $3::text[] AS image_transports, $4::integer AS max_length,
        $5::integer AS max_context_length, $6::double precision AS tools_max_temperature, $7::boolean AS maintenance,
        $8::boolean AS trusted, $9::double precision AS tokens_per_second) w,
(SELECT $10::text[] AS needs, $11::boolean AS needs_images, $12::integer AS max_length,
        $13::integer AS max_context_length, $14::double precision AS tools_temperature, $15::uuid[] AS only_workers,
        $16::uuid[] AS ignore_workers, $17::boolean AS trusted_only, $18::boolean AS fast_only) q
"""  # noqa: S608 - the text under test, and no value

_PAIRS = st.lists(st.tuples(_WORKERS, _REQUESTS), min_size=20, max_size=60)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs=_PAIRS)
async def test_sql_and_python_agree(database_url: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for worker, request in pairs:
            fields = [value for name, value in request.items() if name != "failed_workers"]
            in_sql = await connection.fetchval(_QUERY, *worker.values(), *fields)
            speed = worker["tokens_per_second"] or 0
            known: dict[str, Any] = {
                name: frozenset(value) if isinstance(value, list) else value
                for name, value in worker.items()
                if name != "tokens_per_second"
            }
            facts = WorkerFacts(model_id="m", fast=speed >= 5, **known)
            assert in_sql == is_eligible(facts, RequestNeeds.from_row(request, ["m"]))
    finally:
        await connection.close()
