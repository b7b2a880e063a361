"""A Horde's database with a long queue and many workers, written in one go: for query plans and benchmarks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["FilledQueue", "fill_queue"]

_SEED: Final = 0.5

_USERS_COUNT: Final = 200

_MODELS = "INSERT INTO models (name) SELECT 'filled/model-' || n FROM generate_series(0, $1 - 1) AS n"
"""The models ``filled/model-0`` and on."""

_USERS = """
WITH made AS (
    INSERT INTO users (name, api_key_hash)
    SELECT 'filled-' || n, sha256(convert_to('filled-' || n, 'UTF8')) FROM generate_series(0, $1 - 1) AS n
    RETURNING id
), purses AS (
    INSERT INTO accounts (id, kind, user_id)
    SELECT 2 * id + held, CASE held WHEN 0 THEN 'user' ELSE 'held' END, id FROM made, generate_series(0, 1) AS held
)
SELECT id FROM made ORDER BY id
"""
"""Users with the keys ``filled-0`` and on; the first submits, each owns some of the workers."""

_WORKERS = """
INSERT INTO workers (name, owner_id, model_id, features, image_transports, max_length, max_context_length,
                     tools_max_temperature, threads, tokens_per_second)
SELECT 'filled-' || n, owners.ids[1 + n % array_length(owners.ids, 1)], 'filled/model-' || n % $3,
       ARRAY(SELECT feature FROM unnest($4::text[]) WITH ORDINALITY AS listed (feature, place)
             WHERE (n / $3 >> (place::integer % 8)) & 1 = 1),
       CASE n % 4 WHEN 0 THEN '{url}'::text[] ELSE '{}' END,
       64 << (n % 7), 1024 << (n % 6), CASE n % 3 WHEN 0 THEN 1.0 END, 1 + n % 4, 1 + n % 60
FROM generate_series(0, $2 - 1) AS n, (SELECT $1::bigint[] AS ids) AS owners
"""
"""Workers spread over the models, each with features and limits of its own."""

_REQUESTS = """
WITH made AS (
    INSERT INTO chat_requests (user_id, models, needs, needs_images, max_length, max_context_length,
                               tools_temperature, ignore_workers, trusted_only, fast_only, stream, strict, estimate,
                               expires_at, priority)
    SELECT $1, ARRAY['filled/model-' || n % $3],
           ARRAY(SELECT feature FROM unnest($4::text[]) WITH ORDINALITY AS listed (feature, place)
                 WHERE (n / $3 >> (place::integer % 16)) & 3 = 3),
           n % 20 = 0, 16 + n * 7 % 4000, 1024 + n * 13 % 30000, CASE n % 5 WHEN 0 THEN 0.7 END, '{}', false,
           n % 10 = 0, n % 2 = 0, false, 100, now() + interval '20 minutes', (random() * 100000)::bigint
    FROM generate_series(0, $2 - 1) AS n
    RETURNING id, seq, models, priority, needs, needs_images, max_length, max_context_length, tools_temperature,
              only_workers, ignore_workers, trusted_only, fast_only, failed_workers
), payload AS (
    INSERT INTO chat_payloads (request_id, body) SELECT id, $5 FROM made
)
INSERT INTO chat_queue (request_id, model, priority, seq, needs, needs_images, max_length, max_context_length,
                        tools_temperature, only_workers, ignore_workers, trusted_only, fast_only, failed_workers)
SELECT id, models[1], priority, seq, needs, needs_images, max_length, max_context_length, tools_temperature,
       only_workers, ignore_workers, trusted_only, fast_only, failed_workers
FROM made
"""
"""Requests spread over the same models, with needs that some of the workers meet."""

_JOBS = """
WITH taken AS (
    SELECT r.id, r.models[1] AS model, w.id AS worker_id, w.owner_id
    FROM (SELECT id, models, row_number() OVER (ORDER BY seq) AS place FROM chat_requests ORDER BY seq LIMIT $1) r
    JOIN (SELECT id, owner_id, row_number() OVER (ORDER BY name) AS place FROM workers) w USING (place)
), job AS (
    INSERT INTO chat_jobs (id, request_id, worker_id, owner_id, model, deadline_at)
    SELECT gen_random_uuid(), id, worker_id, owner_id, model, now() + interval '10 minutes' FROM taken
    RETURNING id, request_id
), unqueued AS (
    DELETE FROM chat_queue q USING job WHERE q.request_id = job.request_id
)
UPDATE chat_requests r SET state = 'processing', job_id = job.id, attempts = 1 FROM job WHERE r.id = job.request_id
"""
"""The first requests, each being served by a worker."""


@dataclass(frozen=True, slots=True)
class FilledQueue:
    """What was written.

    Attributes:
        user_id: Who submitted the requests.
        workers: Ids of the workers.
    """

    user_id: int
    workers: list[UUID]


async def fill_queue(
    connection: "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]",
    *,
    requests: int,
    workers: int,
    models: int,
    features: list[str],
    body: bytes,
) -> FilledQueue:
    """Write waiting requests and online workers, and let PostgreSQL count them.

    Args:
        connection: To a database with the newest schema.
        requests: How many wait.
        workers: How many are online; half of them serve a request each.
        models: Over how many models both are spread.
        features: Declarations that workers have and requests need some of.
        body: What each request hands to a worker.
    """
    # A pool bounds statements by what a request may wait; to write 100,000 of them is none of a request's statements.
    await connection.execute("SET statement_timeout = 0")
    rows = await connection.fetch(_USERS, _USERS_COUNT)
    users = [row["id"] for row in rows]
    await connection.execute(_MODELS, models)
    await connection.execute("SELECT setseed($1)", _SEED)
    await connection.execute(_WORKERS, users, workers, models, features)
    await connection.execute(_REQUESTS, users[0], requests + workers // 2, models, features, body, timeout=120)
    await connection.execute(_JOBS, workers // 2, timeout=120)
    await connection.execute("VACUUM ANALYZE", timeout=120)
    await connection.execute("RESET statement_timeout")
    rows = await connection.fetch("SELECT id FROM workers ORDER BY name")
    return FilledQueue(users[0], [row["id"] for row in rows])
