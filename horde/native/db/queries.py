"""The statements that change a request, each named, with a sentence of why it is shaped so.

Order of locks, everywhere: the request's row, then its job, then accounts by id. A transition names the state (and the
job) it starts from; when the row has moved on, it changes nothing and returns no row.
"""

from horde.native.db.eligibility_sql import NEEDS_COLUMNS, online, serves
from horde.native.db.traffic import add_to_traffic
from horde.native.lifecycle import MAX_ATTEMPTS

__all__ = [
    "ADD_IMAGES",
    "ADD_MODEL",
    "CLAIM_JOB",
    "END_REQUEST",
    "EXTEND_DEADLINES",
    "FIND_CLAIM",
    "FIND_EXPIRED_JOBS",
    "FIND_EXPIRED_REQUESTS",
    "FIND_OLD_IMAGES",
    "FIND_POPPED_JOB",
    "IS_MODEL_KNOWN",
    "LEAVE_TOMBSTONE",
    "LOCK_EXPIRED_JOB",
    "LOCK_EXPIRED_REQUEST",
    "LOCK_REQUEST",
    "MARK_STREAM_BROKEN",
    "MARK_SWEPT",
    "PURGE_IMAGES",
    "PURGE_RECORDS",
    "PURGE_TOMBSTONES",
    "READ_JOB",
    "READ_JOB_OWNER",
    "RECORD_PROGRESS",
    "REGISTER_POP",
    "RELEASE_LOST_JOBS",
    "REQUEUE_REQUEST",
    "SETTLE_REPLY",
    "SUBMIT_REQUEST",
    "TOUCH_WORKER",
]

_QUEUE_FROM = f"""
    INSERT INTO chat_queue (request_id, model, priority, seq, {NEEDS_COLUMNS})
    SELECT id, model, priority, seq, {NEEDS_COLUMNS} FROM {{source}}, unnest(models) AS model
"""

FIND_CLAIM = """
SELECT o.request_id, o.body_digest, r.estimate
FROM chat_operations o LEFT JOIN chat_requests r ON r.id = o.request_id
WHERE o.user_id = $1 AND o.operation_key = $2
"""
"""What an operation key was used for: a request, or a tombstone (no request). The primary key decides races."""

SUBMIT_REQUEST = f"""
WITH held AS (
    UPDATE accounts SET balance = balance - $23 WHERE id = $21 AND $23 > 0 AND balance >= $23 RETURNING balance
), cover AS (
    SELECT balance FROM held UNION ALL SELECT balance FROM accounts WHERE id = $21 AND $23 = 0
), request AS (
    INSERT INTO chat_requests (
        user_id, models, needs, needs_images, max_length, max_context_length, tools_temperature, only_workers,
        ignore_workers, trusted_only, fast_only, stream, strict, image_count, estimate, adjustments, client_agent,
        expires_at, held, priority)
    SELECT $1::bigint, $2::text[], $3::text[], $4::boolean, $5::integer, $6::integer, $7::double precision, $8::uuid[],
           $9::uuid[], $10::boolean, $11::boolean, $12::boolean, $13::boolean, $14::smallint, $15::bigint, $16::bytea,
           $17::text, now() + make_interval(secs => $18::double precision), $23,
           CASE WHEN $24::boolean THEN -1 ELSE greatest(balance, 0) END
    FROM cover
    RETURNING id, seq, priority, models, {NEEDS_COLUMNS}
), payload AS (
    INSERT INTO chat_payloads (request_id, body) SELECT id, $19::bytea FROM request
), queued AS ({_QUEUE_FROM.format(source="request")}), claim AS (
    INSERT INTO chat_operations (user_id, operation_key, request_id, body_digest)
    SELECT $1::bigint, $20::uuid, id, $25::bytea FROM request WHERE $20::uuid IS NOT NULL
), pictured AS (
    UPDATE chat_images SET request_id = request.id FROM request WHERE chat_images.id = ANY($26::uuid[])
), set_aside AS (
    UPDATE accounts SET balance = accounts.balance + $23 FROM request WHERE accounts.id = $22 AND $23 > 0
), entry AS (
    INSERT INTO ledger (kind, source, target, amount, request_id)
    SELECT 'hold', $21::bigint, $22::bigint, $23::bigint, id FROM request WHERE $23 > 0
)
SELECT id FROM request
"""
"""Claim, request, payload, queue and hold in one statement, so that all of them are there or none is. The hold is the
account row's own conditional update: no row comes back when the balance does not cover it."""

LEAVE_TOMBSTONE = """
INSERT INTO chat_operations (user_id, operation_key) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true
"""
"""Makes a later commit of the key fail. It waits for a commit of the key that is under way, so that one of the two sees
the other."""

ADD_MODEL = "INSERT INTO models (name) VALUES ($1) ON CONFLICT DO NOTHING"
"""The first worker that declares a model makes it known."""

REGISTER_POP = """
INSERT INTO workers AS w (name, owner_id, model_id, features, image_transports, max_length, max_context_length,
                          tools_max_temperature, threads, bridge_agent)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name) DO UPDATE SET
    model_id = excluded.model_id, features = excluded.features, image_transports = excluded.image_transports,
    max_length = excluded.max_length, max_context_length = excluded.max_context_length,
    tools_max_temperature = excluded.tools_max_temperature, threads = excluded.threads,
    bridge_agent = excluded.bridge_agent, last_seen_at = now()
    WHERE w.owner_id = excluded.owner_id
RETURNING w.id, w.maintenance, w.maintenance_message, w.tokens_per_second
"""
"""Heartbeat and declaration of a pop; makes the worker on its first. No row comes back for another owner's worker."""

TOUCH_WORKER = "UPDATE workers SET last_seen_at = now() WHERE id = $1"
"""Heartbeat of a worker whose pop is held for long, or that submits."""

CLAIM_JOB = f"""
WITH candidate AS MATERIALIZED (
    SELECT found.id, found.model, w.id AS worker_id, w.owner_id
    FROM workers w JOIN users u ON u.id = w.owner_id CROSS JOIN LATERAL (
        SELECT r.id, q.model
        FROM chat_queue q JOIN chat_requests r ON r.id = q.request_id
        WHERE q.model = w.model_id AND r.state = 'waiting' AND r.expires_at > now()
          AND {serves("w", "u", "q", fast_limit="$5")}
          AND (w.id <> ALL(q.failed_workers) OR NOT EXISTS (
              SELECT FROM workers o JOIN users ou ON ou.id = o.owner_id
              WHERE o.model_id = ANY(r.models) AND o.id <> ALL(q.failed_workers) AND {online("o")}
                AND {serves("o", "ou", "q", fast_limit="$5")}))
        ORDER BY q.priority DESC, q.seq LIMIT 1
        FOR UPDATE OF r, q SKIP LOCKED
    ) found
    WHERE w.id = $1
), claimed AS (
    UPDATE chat_requests r SET state = 'processing', job_id = $2, attempts = r.attempts + 1
    FROM candidate c WHERE r.id = c.id
    RETURNING r.id, r.stream, r.expires_at, r.max_length, c.model, c.worker_id, c.owner_id
), unqueued AS (
    DELETE FROM chat_queue q USING candidate c WHERE q.request_id = c.id
), job AS (
    INSERT INTO chat_jobs (id, request_id, worker_id, owner_id, model, pop_id, deadline_at)
    SELECT $2, id, worker_id, owner_id, model, $3,
           least(expires_at, now() + make_interval(secs => 30 + 2 * max_length / $4::double precision))
    FROM claimed
    RETURNING request_id, deadline_at
)
SELECT c.id AS request_id, c.model, c.stream, p.body, extract(epoch FROM j.deadline_at - now())::double precision AS ttl
FROM claimed c JOIN job j ON j.request_id = c.id JOIN chat_payloads p ON p.request_id = c.id
"""
"""A pop: the first request of the worker's model, in order, that it may serve and nobody else is taking. The candidate
is materialised so that the lock is taken once; SKIP LOCKED lets pops pass one another. The queue's row is locked too: a
request that was popped and queued again since it was found waits again, but in another row, which this statement could
not delete. The request comes first, so that only the taken one's row in the queue is locked. A worker that failed the
request gets it again only when no other is eligible."""

FIND_POPPED_JOB = """
SELECT j.id AS job_id, j.state, j.request_id, j.model, r.stream, p.body,
       extract(epoch FROM j.deadline_at - now())::double precision AS ttl
FROM chat_jobs j JOIN chat_requests r ON r.id = j.request_id JOIN chat_payloads p ON p.request_id = j.request_id
WHERE j.worker_id = $1 AND j.pop_id = $2
"""
"""The job that an earlier copy of the same pop got."""


_MAY_BE_LOST = """(
    SELECT count(*) FROM chat_jobs x WHERE x.request_id = r.id AND x.state = 'released') < 2"""
"""Whether a job of the request may be released without counting, as fewer than two were."""


def _requeue(found: str, *, attempts: str) -> str:
    """Return the statement that puts requests back to the queue and ends their attempts.

    Args:
        found: Text of the CTE ``found`` with the columns ``id`` and ``job_id``, which holds their locks.
        attempts: What the request's count of attempts becomes.
    """
    return f"""
WITH found AS MATERIALIZED ({found}), job AS (
    UPDATE chat_jobs j SET state = $1, ended_at = now() FROM found f WHERE j.id = f.job_id
    RETURNING j.request_id, j.worker_id
), back AS (
    UPDATE chat_requests r SET state = 'waiting', job_id = NULL, attempts = {attempts},
        restarted = r.restarted + 1,
        failed_workers = CASE WHEN $1 = 'released' AND {_MAY_BE_LOST} THEN r.failed_workers
                              ELSE array_append(r.failed_workers, j.worker_id) END,
        fault_rc = coalesce($2::text, r.fault_rc), fault_message = coalesce($3::text, r.fault_message)
    FROM job j WHERE r.id = j.request_id
    RETURNING r.id, r.seq, r.priority, r.models, r.stream, {", ".join(f"r.{c}" for c in NEEDS_COLUMNS.split(", "))}
), queued AS ({_QUEUE_FROM.format(source="back")})
SELECT b.*, f.job_id FROM back b JOIN found f USING (id)
"""


REQUEUE_REQUEST = _requeue(
    "SELECT id, job_id FROM chat_requests WHERE id = $4 AND state = 'processing' AND job_id = $5 FOR UPDATE",
    attempts="r.attempts",
)
"""Ends a failed attempt and queues the request again at its old place; the last reason is kept on it."""

RELEASE_LOST_JOBS = _requeue(
    f"""
    SELECT r.id, j.id AS job_id
    FROM chat_jobs j JOIN chat_requests r ON r.id = j.request_id AND r.job_id = j.id AND r.state = 'processing'
    WHERE j.worker_id = $4 AND j.state = 'processing' AND NOT j.posted AND j.id <> ALL($5::uuid[])
      AND ($6::uuid IS NULL OR j.pop_id IS DISTINCT FROM $6::uuid)
      AND (r.attempts < {MAX_ATTEMPTS} OR {_MAY_BE_LOST})
    FOR UPDATE OF r, j SKIP LOCKED
    """,
    attempts=f"r.attempts - CASE WHEN {_MAY_BE_LOST} THEN 1 ELSE 0 END",
)
"""Jobs that a worker does not know of and never posted for go back: their pop's answer was lost. That counts from a
request's third time on, and then against the worker too, so that no worker can take a request and drop it for ever; a
last attempt that is lost stays until its lease ends, which faults the request. The job of this very pop stays. A worker
whose pops overlap cannot know what the other one brings; it sends no list."""

RECORD_PROGRESS = """
WITH job AS (
    UPDATE chat_jobs j SET
        posted = true,
        deadline_at = least(r.expires_at, now() + make_interval(secs => $3::double precision)),
        streamed_seq = CASE WHEN $4 = j.streamed_seq + 1 THEN $4 ELSE j.streamed_seq END,
        streamed_ascii = j.streamed_ascii
            + CASE WHEN $4 = j.streamed_seq + 1 AND r.stream AND NOT j.stream_broken THEN $5::integer ELSE 0 END,
        streamed_wide = j.streamed_wide
            + CASE WHEN $4 = j.streamed_seq + 1 AND r.stream AND NOT j.stream_broken THEN $6::integer ELSE 0 END
    FROM chat_requests r
    WHERE j.id = $1 AND j.owner_id = $2 AND j.state = 'processing' AND r.id = j.request_id
    RETURNING j.request_id, j.worker_id, j.model, j.stream_broken, r.stream, old.streamed_seq AS last_seq
), seen AS (
    UPDATE workers w SET last_seen_at = now() FROM job
    WHERE w.id = job.worker_id AND w.last_seen_at < now() - interval '1 second'
)
SELECT * FROM job
"""
"""Renews the lease and counts what is streamed, if the job still runs and is the caller's. It locks the job alone, so
that a post never waits for a settlement."""

MARK_STREAM_BROKEN = """
UPDATE chat_jobs SET stream_broken = true, streamed_ascii = streamed_ascii - $2::integer,
                     streamed_wide = streamed_wide - $3::integer
WHERE id = $1 AND NOT stream_broken
"""
"""The stream refused an entry: nothing more of this attempt is streamed, and what was not is not charged for."""

READ_JOB_OWNER = "SELECT owner_id FROM chat_jobs WHERE id = $1"
"""Tells a job of somebody else's from one that is unknown."""

READ_JOB = """
SELECT j.id AS job_id, j.state, j.owner_id, j.worker_id, j.model, j.popped_at, r.id AS request_id, r.user_id, r.models,
       r.attempts, r.strict, r.stream, r.max_length, r.image_count, r.fault_rc, p.body, m.parameters_billions
FROM chat_jobs j JOIN chat_requests r ON r.id = j.request_id JOIN chat_payloads p ON p.request_id = j.request_id
LEFT JOIN models m ON m.name = j.model
WHERE j.id = $1
"""
"""All that a submit is checked against; nothing of it can change while the job runs."""

LOCK_REQUEST = "SELECT id, state, job_id, stream FROM chat_requests WHERE id = $1 AND user_id = $2 FOR UPDATE"
"""The lock of a cancel, which reads the streamed length after it and settles in the same transaction."""

_END = """
WITH req AS MATERIALIZED (
    SELECT id, held FROM chat_requests
    WHERE id = $1 AND job_id IS NOT DISTINCT FROM $2::uuid AND state IN ('waiting', 'processing') FOR UPDATE
), movement AS MATERIALIZED (
    SELECT 'release' AS kind, $11::bigint AS source, $10::bigint AS target, held AS amount FROM req WHERE held > 0
    UNION ALL SELECT 'charge', $8::bigint, $9::bigint, $7::bigint FROM req WHERE $7::bigint > 0
), locked AS MATERIALIZED (
    SELECT id FROM accounts WHERE id IN (SELECT source FROM movement UNION SELECT target FROM movement)
    ORDER BY id FOR UPDATE
), change AS MATERIALIZED (
    SELECT account, sum(amount)::bigint AS amount FROM (
        SELECT target AS account, amount FROM movement UNION ALL SELECT source, -amount FROM movement) side
    GROUP BY account
), moved AS (
    UPDATE accounts a SET balance = a.balance + c.amount FROM change c JOIN locked l ON l.id = c.account
    WHERE a.id = c.account AND c.amount <> 0
), booked AS (
    INSERT INTO ledger (kind, source, target, amount, request_id, job_id)
    SELECT kind, source, target, amount, $1, $2::uuid FROM movement
), job AS (
    UPDATE chat_jobs j SET state = $4, ended_at = now() FROM req WHERE j.id = $2::uuid
    RETURNING j.worker_id, j.popped_at
), unqueued AS (
    DELETE FROM chat_queue q USING req WHERE q.request_id = req.id
), ended AS (
    UPDATE chat_requests r SET state = $3::text, ended_at = now(), held = 0, charged = $7,
        job_id = CASE WHEN $3::text = 'replied' THEN r.job_id END,
        fault_rc = $5::text, fault_message = $6::text
    FROM req WHERE r.id = req.id
){extra}
SELECT id FROM req
"""

END_REQUEST = _END.format(extra="")
"""Ends a request without a reply: releases its hold, charges what was streamed, if anything. Accounts are locked in the
order of their ids before any is changed, so that settlements cannot wait for one another in a circle."""

SETTLE_REPLY = _END.format(
    extra=""", reply AS (
    INSERT INTO chat_replies (request_id, job_id, message, finish_reason, native_finish_reason, prompt_tokens,
                              completion_tokens, reasoning_tokens)
    SELECT id, $2::uuid, $12::bytea, $13::text, $14::text, $15::bigint, $16::bigint, $17::bigint FROM req
), measured AS (
    UPDATE workers w SET last_seen_at = now(), tokens_per_second = CASE
        WHEN $18::integer < 8 THEN w.tokens_per_second
        WHEN w.tokens_per_second IS NULL THEN m.speed
        ELSE 0.8 * w.tokens_per_second + 0.2 * m.speed END
    FROM (SELECT worker_id, $18::integer / greatest(0.001, extract(epoch FROM now() - popped_at))::double precision
                 AS speed FROM job) m
    WHERE w.id = m.worker_id
)""",
)
"""Ends a request with its reply: reply, hold, charge, reward and the worker's measured speed in one statement. It
starts from the attempt that counts, so that of two submits one changes something."""

IS_MODEL_KNOWN = "SELECT EXISTS (SELECT FROM models WHERE name = $1)"
"""Whether workers may declare a model, where models are added by hand alone."""

_EXPIRED_JOBS = """
SELECT r.id AS request_id, j.id AS job_id, r.user_id, r.attempts, r.stream
FROM chat_jobs j JOIN chat_requests r ON r.id = j.request_id AND r.job_id = j.id
WHERE j.state = 'processing' AND j.deadline_at < now() AND r.state = 'processing' AND r.expires_at > now()
  AND EXISTS (SELECT FROM horde_state WHERE swept_at > now() - make_interval(secs => $1::double precision))
"""

FIND_EXPIRED_JOBS = _EXPIRED_JOBS + "ORDER BY j.deadline_at LIMIT $2"
"""Attempts whose time has run out, not locked: each is locked and ended in a transaction of its own. None is found so
long after a sweep's start that the time between may have been an outage: the next start extends leases first."""

LOCK_EXPIRED_JOB = _EXPIRED_JOBS + "AND r.id = $2 AND j.id = $3 FOR UPDATE OF r, j SKIP LOCKED"
"""One of them, if its time is still over. Both rows are locked, so that a lease renewed meanwhile is seen; what is
being changed by somebody else is left for the next round."""

_EXPIRED_REQUESTS = """
SELECT id AS request_id, job_id, user_id, stream FROM chat_requests
WHERE state IN ('waiting', 'processing') AND expires_at <= now()
"""

FIND_EXPIRED_REQUESTS = _EXPIRED_REQUESTS + "ORDER BY expires_at LIMIT $1"
"""Requests whose twenty minutes are over, not locked."""

LOCK_EXPIRED_REQUEST = _EXPIRED_REQUESTS + "AND id = $1 FOR UPDATE SKIP LOCKED"
"""One of them, if it is still open."""

MARK_SWEPT = """
UPDATE horde_state SET swept_at = now() WHERE id = 1 AND pg_try_advisory_xact_lock($1)
RETURNING extract(epoch FROM now() - old.swept_at)::double precision AS seconds
"""
"""One sweeper at a time starts, and how long ago the last one did; no row comes back while another starts."""

EXTEND_DEADLINES = """
UPDATE chat_jobs j SET deadline_at = least(r.expires_at, j.deadline_at + make_interval(secs => $1::double precision))
FROM chat_requests r WHERE j.state = 'processing' AND r.id = j.request_id
"""
"""Gives every attempt the time in which nobody could post, after an outage of the Horde or of its database. It locks
jobs alone, and is committed before anything is ended."""

PURGE_RECORDS = """
WITH purged AS (
    DELETE FROM chat_requests WHERE id IN (
        SELECT id FROM chat_requests
        WHERE state NOT IN ('waiting', 'processing')
          AND expires_at < now() - make_interval(secs => $1::double precision)
        ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING created_at, client_agent, state, charged
)""" + add_to_traffic("purged", most="$3")
"""Deletes prompts, replies, attempts and claims of old requests, and counts each request for its application in the
same statement; the ledger's rows hold no text and stay."""

PURGE_TOMBSTONES = """
DELETE FROM chat_operations
WHERE request_id IS NULL AND created_at < now() - make_interval(secs => $1::double precision)
"""
"""Deletes tombstones that no late copy of a submit can meet any more."""

ADD_IMAGES = "INSERT INTO chat_images (id) SELECT unnest($1::uuid[])"
"""Written before the objects are, so that whatever a broken submit leaves in the store is known here."""

FIND_OLD_IMAGES = """
SELECT i.id FROM chat_images i LEFT JOIN chat_requests r ON r.id = i.request_id
WHERE CASE WHEN r.id IS NULL THEN i.created_at < now() - make_interval(secs => $1::double precision)
           ELSE r.state NOT IN ('waiting', 'processing') END
ORDER BY i.created_at LIMIT $2 FOR UPDATE OF i SKIP LOCKED
"""
"""Pictures whose request has ended or is deleted, and those which never got one and are so old that no submit is still
on its way to taking them. The table holds pictures of open requests and little else, so that it is read as a whole."""

PURGE_IMAGES = "DELETE FROM chat_images WHERE id = ANY($1::uuid[])"
"""Forgets pictures after their objects are deleted, never before."""
