"""Pops and statuses look up what they need: with 100,000 requests waiting and 5,000 workers, no plan reads a table."""

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatGuarantee

from horde.native.db import queries, reads
from horde.native.db.engine import open_pool
from tests.support.filled_queue import fill_queue
from tests.support.postgres import DatabasesForTests

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

pytestmark = pytest.mark.xdist_group("query plans")

_WAITING, _WORKERS, _MODELS = 100_000, 5_000, 20

_GROWING = {"chat_queue", "chat_requests", "chat_payloads", "workers"}
"""Tables whose size is that of the queue or of the crowd."""


_STATEMENTS = {
    name: getattr(queries, name)
    for name in (
        "CLAIM_JOB",
        "REGISTER_POP",
        "RELEASE_LOST_JOBS",
        "RECORD_PROGRESS",
        "READ_JOB",
        "SETTLE_REPLY",
        "END_REQUEST",
        "REQUEUE_REQUEST",
        "SUBMIT_REQUEST",
        "FIND_EXPIRED_JOBS",
        "FIND_EXPIRED_REQUESTS",
    )
} | {"READ_STATUS": reads.READ_STATUS}

type Steps = list[dict[str, Any]]


@pytest.fixture(scope="module")
def plans(postgres: DatabasesForTests) -> Iterator[dict[str, Steps]]:
    """The plan of each statement, as the steps of it, with a long queue and many workers."""
    name = postgres.create_migrated()
    try:
        yield asyncio.run(_plan_all(postgres.url_of(name)))
    finally:
        postgres.drop(name)


async def _plan_all(url: str) -> dict[str, Steps]:
    # Filling takes as long as the machine takes.
    async with open_pool(url, size=1, timeout_seconds=120) as pool, pool.acquire() as connection:
        await fill_queue(
            connection,
            requests=_WAITING,
            workers=_WORKERS,
            models=_MODELS,
            features=[*ChatFeature, *ChatGuarantee],
            body=b"{}",
        )
        return {name: await _plan(connection, statement) for name, statement in _STATEMENTS.items()}


async def _plan(connection: "PoolConnectionProxy[asyncpg.Record]", statement: str) -> Steps:
    """Return the plan with which the Horde's connections run a statement, whatever its arguments."""
    arguments = max(int(number) for number in re.findall(r"\$(\d+)", statement))
    await connection.execute(f"PREPARE planned AS {statement}")
    plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE planned({', '.join(['NULL'] * arguments)})")
    await connection.execute("DEALLOCATE planned")
    return list(_steps(orjson.loads(plan)[0]["Plan"]))


def _steps(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield step
    for inner in step.get("Plans", []):
        yield from _steps(inner)


def _read_whole(steps: Steps) -> set[str]:
    return {step["Relation Name"] for step in steps if step["Node Type"] == "Seq Scan"} & _GROWING


@pytest.mark.rule("NAT-13")
def test_a_pop_walks_the_queue_in_its_order_and_sorts_nothing(plans: dict[str, Steps]) -> None:
    steps = plans["CLAIM_JOB"]
    walks = [step for step in steps if step.get("Index Name") == "chat_queue_order_idx"]
    assert [step["Node Type"] for step in walks] == ["Index Scan"]
    assert not [step for step in steps if "Sort" in step["Node Type"]]


@pytest.mark.rule("NAT-3")
def test_a_status_looks_its_request_up_and_reads_the_workers_of_its_models_alone(plans: dict[str, Steps]) -> None:
    used = {step.get("Index Name") for step in plans["READ_STATUS"]}
    assert {"chat_requests_pkey", "workers_model_id_idx"} <= used


@pytest.mark.parametrize("name", _STATEMENTS)
def test_no_statement_of_a_requests_life_reads_a_growing_table_whole(plans: dict[str, Steps], name: str) -> None:
    assert _read_whole(plans[name]) == set()
