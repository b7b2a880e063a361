"""The statements that read, and those of users and workers; each named, with a sentence of why it is shaped so."""

from horde.native.db.eligibility_sql import NEEDS_COLUMNS, online, serves

__all__ = [
    "CREATE_USER",
    "FIND_USER_BY_KEY",
    "FIND_WRONG_BALANCES",
    "GRANT_KUDOS",
    "LIST_MODELS",
    "LIST_WORKERS",
    "READ_BALANCE",
    "READ_IMAGES",
    "READ_PROSPECTS",
    "READ_QUEUE",
    "READ_RUNNING",
    "READ_SHARED_KEY",
    "READ_SPEEDS",
    "READ_STATUS",
    "READ_STREAMED",
    "READ_STREAMED_BYTES",
    "SET_MAINTENANCE",
    "WORKER_OWNER",
]

FIND_USER_BY_KEY = "SELECT id, name, trusted, moderator FROM users WHERE api_key_hash = $1 AND NOT disabled"
"""Whose key this is; keys are stored as hashes alone."""

CREATE_USER = """
WITH made AS (
    INSERT INTO users AS u (name, api_key_hash, trusted, moderator) VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO UPDATE SET api_key_hash = excluded.api_key_hash, trusted = excluded.trusted,
                                     moderator = excluded.moderator
    RETURNING id, old.id IS NULL AS created
), purses AS (
    INSERT INTO accounts (id, kind, user_id)
    SELECT 2 * id + held, CASE held WHEN 0 THEN 'user' ELSE 'held' END, id FROM made, generate_series(0, 1) AS held
    ON CONFLICT DO NOTHING
)
SELECT id, created FROM made
"""
"""Makes a user with both accounts, or gives the one of that name this key."""

GRANT_KUDOS = """
WITH locked AS MATERIALIZED (SELECT id FROM accounts WHERE id IN ($1, $2) ORDER BY id FOR UPDATE), moved AS (
    UPDATE accounts a SET balance = a.balance + CASE a.id WHEN $2 THEN $3::bigint ELSE -$3::bigint END
    FROM locked l WHERE a.id = l.id
)
INSERT INTO ledger (kind, source, target, amount) VALUES ('grant', $1, $2, $3)
"""
"""Kudos from the Horde's purse to a user."""

READ_BALANCE = "SELECT balance FROM accounts WHERE id = $1"
"""What a user can spend."""

FIND_WRONG_BALANCES = """
SELECT a.id, a.balance, coalesce(sum(side.amount), 0)::bigint AS booked
FROM accounts a LEFT JOIN (
    SELECT target AS account, amount FROM ledger UNION ALL SELECT source, -amount FROM ledger
) side ON side.account = a.id
GROUP BY a.id, a.balance HAVING a.balance <> coalesce(sum(side.amount), 0) ORDER BY a.id
"""
"""The proof of the ledger: accounts whose balance is not the sum of their rows; none, ever."""

READ_PROSPECTS = f"""
SELECT listed.model, m.name IS NOT NULL AS known, m.admits, m.parameters_billions, count(w.id) AS workers,
       coalesce(sum(w.threads) FILTER (WHERE $2::text[] <@ w.features), 0)::bigint AS threads,
       max(w.max_length) AS max_length, max(w.max_context_length) AS max_context_length,
       (SELECT admits FROM horde_state) AS horde_admits, (SELECT maintenance FROM horde_state) AS maintenance,
       (SELECT maintenance_message FROM horde_state) AS maintenance_message
FROM unnest($1::text[]) WITH ORDINALITY AS listed (model, place)
LEFT JOIN models m ON m.name = listed.model
LEFT JOIN workers w ON w.model_id = listed.model AND {online("w")}
GROUP BY listed.model, listed.place, m.name, m.admits, m.parameters_billions
ORDER BY listed.place
"""
"""What a submit has to know of each listed model: known, admitted, served, by how many, how large; and the switches of
the whole Horde, so that a process notices them with its next submit. One read for all checks."""

READ_STATUS = f"""
SELECT r.id, r.state, r.estimate, r.charged, r.restarted, r.adjustments, r.fault_rc, r.fault_message, r.job_id,
       r.models, {", ".join(f"r.{column}" for column in NEEDS_COLUMNS.split(", "))},
       extract(epoch FROM j.popped_at - r.created_at)::double precision AS queue_wait, j.model AS served_model,
       w.id AS worker_id, w.name AS worker_name,
       p.message, p.finish_reason, p.native_finish_reason, p.prompt_tokens, p.completion_tokens, p.reasoning_tokens,
       eligible.workers AS eligible_workers, eligible.threads AS eligible_threads, gap.workers AS gap_workers
FROM chat_requests r
LEFT JOIN chat_jobs j ON j.id = r.job_id
LEFT JOIN workers w ON w.id = j.worker_id
LEFT JOIN chat_replies p ON p.request_id = r.id
LEFT JOIN LATERAL (
    SELECT count(*) AS workers, coalesce(sum(o.threads), 0)::bigint AS threads
    FROM workers o JOIN users ou ON ou.id = o.owner_id
    WHERE r.state IN ('waiting', 'processing') AND o.model_id = ANY(r.models) AND {online("o")}
      AND {serves("o", "ou", "r", fast_limit="$3")}
) eligible ON true
LEFT JOIN LATERAL (
    SELECT json_agg(near)::text AS workers FROM (
        SELECT o.id, o.model_id, o.features, o.image_transports, o.max_length, o.max_context_length,
               o.tools_max_temperature, ou.trusted, coalesce(o.tokens_per_second, 0) >= $3 AS fast
        FROM workers o JOIN users ou ON ou.id = o.owner_id
        WHERE o.model_id = ANY(r.models) AND {online("o")} LIMIT 200
    ) near WHERE r.state = 'waiting' AND eligible.workers = 0
) gap ON true
WHERE r.id = $1 AND r.user_id = $2
"""
"""A status in one read without a lock. The workers that might explain an impossible request are read only for a request
that waits with nobody eligible."""

READ_STREAMED = """
SELECT j.id AS job_id, j.owner_id, j.streamed_ascii, j.streamed_wide, r.max_length, r.image_count, j.model,
       m.parameters_billions
FROM chat_jobs j JOIN chat_requests r ON r.id = j.request_id LEFT JOIN models m ON m.name = j.model
WHERE j.id = $1 FOR UPDATE OF j
"""
"""What an attempt has streamed, read under the locks of a cancel."""

LIST_MODELS = f"""
SELECT m.name, count(w.id) AS workers, coalesce(sum(w.threads), 0)::bigint AS threads,
       max(w.max_length) AS max_length, max(w.max_context_length) AS max_context_length,
       avg(w.tokens_per_second) AS speed,
       array(SELECT DISTINCT feature FROM workers o, unnest(o.features) AS feature
             WHERE o.model_id = m.name AND {online("o")} ORDER BY feature) AS features
FROM models m LEFT JOIN workers w ON w.model_id = m.name AND {online("w")}
GROUP BY m.name ORDER BY m.name
"""
"""Every known model with the maxima and the union over its online workers."""

READ_QUEUE = f"""
SELECT q.request_id, q.model, q.priority, q.seq, {", ".join(f"q.{column}" for column in NEEDS_COLUMNS.split(", "))}
FROM chat_queue q ORDER BY q.priority DESC, q.seq LIMIT $1
"""
"""The queue in the order of service, for the snapshot."""

READ_RUNNING = "SELECT model, count(*) AS jobs FROM chat_jobs WHERE state = 'processing' GROUP BY model"
"""How many jobs run, by model."""

READ_SPEEDS = f"""
SELECT w.model_id AS model, sum(w.threads)::bigint AS threads, avg(w.tokens_per_second) AS speed
FROM workers w WHERE {online("w")} GROUP BY w.model_id
"""
"""Threads and measured speed of the online workers, by model."""

LIST_WORKERS = f"""
SELECT w.id, w.name, w.model_id, w.threads, w.features, w.max_length, w.max_context_length, w.bridge_agent,
       w.maintenance, w.maintenance_message, w.tokens_per_second, u.name AS owner, u.trusted, {online("w")} AS online
FROM workers w JOIN users u ON u.id = w.owner_id
WHERE $1::uuid IS NULL OR w.id = $1 ORDER BY w.name LIMIT 10000
"""
"""One worker, or all of them."""

WORKER_OWNER = "SELECT owner_id FROM workers WHERE id = $1"
"""Whose worker this is."""

SET_MAINTENANCE = "UPDATE workers SET maintenance = $2, maintenance_message = $3 WHERE id = $1"
"""Withdraws a worker, or takes it back."""

READ_SHARED_KEY = "SELECT value FROM horde_secrets WHERE name = $1"
"""A key that the processes of the Horde share."""

READ_IMAGES = """
SELECT i.id FROM chat_images i JOIN chat_jobs j ON j.request_id = i.request_id
WHERE i.id = ANY($1::uuid[]) AND j.id = $2
"""
"""Which of these pictures are those of a job's request."""

READ_STREAMED_BYTES = "SELECT streamed_ascii + streamed_wide FROM chat_jobs WHERE id = $1"
"""UTF-8 bytes of text and reasoning that a job's stream was given."""
