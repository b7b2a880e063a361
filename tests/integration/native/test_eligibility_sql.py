"""The rule of eligibility stands twice, as SQL and in Python: both say the same of every worker and request."""

from typing import Any
from uuid import UUID

import asyncpg
import orjson
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
SELECT {serves("w", "w", "q", fast_limit="5")} AS eligible
FROM json_to_recordset($1::json) AS w (
    number integer, id uuid, features text[], image_transports text[], max_length integer, max_context_length integer,
    tools_max_temperature double precision, maintenance boolean, trusted boolean, tokens_per_second double precision)
JOIN json_to_recordset($2::json) AS q (
    number integer, needs text[], needs_images boolean, max_length integer, max_context_length integer,
    tools_temperature double precision, only_workers uuid[], ignore_workers uuid[], trusted_only boolean,
    fast_only boolean) ON q.number = w.number
ORDER BY w.number
"""  # noqa: S608 - the text under test, and no value


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs=st.lists(st.tuples(_WORKERS, _REQUESTS), min_size=1, max_size=12))
async def test_sql_and_python_agree(database_url: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    workers, requests = (
        orjson.dumps([{**row, "number": number} for number, row in enumerate(side)]).decode()
        for side in zip(*pairs, strict=True)
    )
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(_QUERY, workers, requests)
    finally:
        await connection.close()
    assert [row["eligible"] for row in rows] == [_in_python(worker, request) for worker, request in pairs]


def _in_python(worker: dict[str, Any], request: dict[str, Any]) -> bool:
    known: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in worker.items()
        if name != "tokens_per_second"
    }
    facts = WorkerFacts(model_id="m", fast=(worker["tokens_per_second"] or 0) >= 5, **known)
    return is_eligible(facts, RequestNeeds.from_row(request, ["m"]))
