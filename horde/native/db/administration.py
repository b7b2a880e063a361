"""The statements of an administrator, each named; none of them is on the path of a request.

Names come in and numbers stay inside: an administrator knows users, workers and models by name.
"""

__all__ = [
    "ADD_MODEL",
    "CREATE_USER",
    "DELETE_MODEL",
    "DELETE_WORKER",
    "LEDGER_PROOFS",
    "LIST_MODELS",
    "LIST_USERS",
    "LIST_WORKERS",
    "MOVE_KUDOS",
    "READ_SWITCHES",
    "SET_ADMISSION",
    "SET_DISABLED",
    "SET_KEY",
    "SET_MAINTENANCE",
    "SET_MODEL_ADMISSION",
    "SET_WORKER_MAINTENANCE",
]

from collections.abc import Mapping
from typing import Final

from horde.native.db.eligibility_sql import online

CREATE_USER = """
WITH made AS (
    INSERT INTO users (name, api_key_hash, trusted, moderator) VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO NOTHING RETURNING id
), purses AS (
    INSERT INTO accounts (id, kind, user_id)
    SELECT 2 * id + held, CASE held WHEN 0 THEN 'user' ELSE 'held' END, id FROM made, generate_series(0, 1) AS held
)
SELECT id FROM made
"""
"""Makes a user with both accounts; no row comes back when the name is taken."""

LIST_USERS = """
SELECT u.id, u.name, u.trusted, u.moderator, u.disabled, u.api_key_hash IS NOT NULL AS has_key, u.created_at,
       spendable.balance AS kudos, held.balance AS held, count(w.id) AS workers
FROM users u JOIN accounts spendable ON spendable.user_id = u.id AND spendable.kind = 'user'
JOIN accounts held ON held.user_id = u.id AND held.kind = 'held'
LEFT JOIN workers w ON w.owner_id = u.id
WHERE $1::text IS NULL OR u.name = $1
GROUP BY u.id, spendable.balance, held.balance ORDER BY u.id LIMIT 10000
"""
"""One user, or all of them; never a key."""

SET_KEY = "UPDATE users SET api_key_hash = $2 WHERE name = $1 AND id <> 0 RETURNING id"
"""Gives a user another key, or none; the key before is worth nothing from then on."""

SET_DISABLED = "UPDATE users SET disabled = $2 WHERE name = $1 AND id <> 0 RETURNING id"
"""Shuts a user out, or lets it in again."""

MOVE_KUDOS = """
WITH found AS (
    SELECT 2 * id AS account FROM users WHERE name = $1 AND id <> 0
), locked AS MATERIALIZED (
    SELECT a.id, a.balance FROM accounts a, found f WHERE a.id IN ($2::bigint, f.account) ORDER BY a.id FOR UPDATE OF a
), allowed AS MATERIALIZED (
    SELECT account FROM found WHERE (
        SELECT bool_and(CASE id WHEN $2::bigint THEN abs(balance::numeric - $3::bigint) <= $5::bigint
                                ELSE abs(balance::numeric + $3::bigint) <= $4::bigint END) FROM locked)
), moved AS (
    UPDATE accounts a SET balance = a.balance + CASE a.id WHEN $2::bigint THEN -$3::bigint ELSE $3::bigint END
    FROM locked l, allowed WHERE a.id = l.id RETURNING a.id, a.balance
), booked AS (
    INSERT INTO ledger (kind, source, target, amount)
    SELECT 'grant', CASE WHEN $3::bigint > 0 THEN $2::bigint ELSE account END,
           CASE WHEN $3::bigint > 0 THEN account ELSE $2::bigint END, abs($3::bigint) FROM allowed
)
SELECT m.balance FROM found f LEFT JOIN moved m ON m.id = f.account
"""
"""Kudos from the Horde's purse to a user, or back when the amount is negative: one row of the ledger and both balances,
in one statement, accounts locked in the order of their ids. No row comes back for an unknown user, and NULL when one of
the two would be over its bound: then nothing has moved."""

LIST_WORKERS = f"""
SELECT w.id, w.name, u.name AS owner, w.model_id AS model, w.threads, w.max_length, w.max_context_length,
       {online("w")} AS online, w.maintenance, w.maintenance_message, w.tokens_per_second, w.bridge_agent,
       w.last_seen_at, (SELECT count(*) FROM chat_jobs j WHERE j.worker_id = w.id AND j.state = 'processing') AS jobs
FROM workers w JOIN users u ON u.id = w.owner_id
WHERE $1::text IS NULL OR w.name = $1 OR w.id::text = $1 ORDER BY w.name LIMIT 10000
"""
"""One worker, by name or id, or all of them."""

SET_WORKER_MAINTENANCE = """
UPDATE workers SET maintenance = $2, maintenance_message = $3 WHERE name = $1 OR id::text = $1 RETURNING id
"""
"""Withdraws a worker and says why, or takes it back."""

DELETE_WORKER = "DELETE FROM workers WHERE name = $1 OR id::text = $1 RETURNING id"
"""Forgets a worker; a foreign key refuses it as long as jobs of it are on record."""

LIST_MODELS = f"""
SELECT m.name, m.parameters_billions, m.admits,
       (SELECT count(*) FROM workers w WHERE w.model_id = m.name AND {online("w")}) AS workers,
       (SELECT count(*) FROM chat_queue q WHERE q.model = m.name) AS queued
FROM models m WHERE $1::text IS NULL OR m.name = $1 ORDER BY m.name LIMIT 10000
"""
"""One known model, or all of them."""

ADD_MODEL = """
INSERT INTO models (name, parameters_billions) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET parameters_billions = excluded.parameters_billions RETURNING name
"""
"""Makes a model known, or changes the size its price follows."""

DELETE_MODEL = "DELETE FROM models WHERE name = $1 RETURNING name"
"""Forgets a model: new requests for it are refused, those that wait are served."""

SET_MODEL_ADMISSION = "UPDATE models SET admits = $2 WHERE name = $1 RETURNING name"
"""Whether requests for a model are taken in."""

READ_SWITCHES = "SELECT maintenance, maintenance_message, admits FROM horde_state WHERE id = 1"
"""The switches of the whole Horde."""

SET_MAINTENANCE = "UPDATE horde_state SET maintenance = $1, maintenance_message = $2 WHERE id = 1 RETURNING id"
"""Maintenance of the whole Horde."""

SET_ADMISSION = "UPDATE horde_state SET admits = $1 WHERE id = 1 RETURNING id"
"""Whether chat requests are taken in."""

LEDGER_PROOFS: Final[Mapping[str, str]] = {
    "all balances sum to zero": """
        SELECT 'all accounts' AS subject, 0::numeric AS expected, sum(balance) AS found
        FROM accounts HAVING sum(balance) <> 0""",
    "a balance is the sum of its rows": """
        SELECT 'account ' || a.id AS subject, coalesce(sum(side.amount), 0) AS expected, a.balance AS found
        FROM accounts a LEFT JOIN (
            SELECT target AS account, amount FROM ledger UNION ALL SELECT source, -amount FROM ledger
        ) side ON side.account = a.id
        GROUP BY a.id HAVING a.balance <> coalesce(sum(side.amount), 0)""",
    "what is held is what open requests hold": """
        SELECT 'account ' || a.id AS subject, coalesce(sum(r.held), 0) AS expected, a.balance AS found
        FROM accounts a LEFT JOIN chat_requests r
            ON r.user_id = a.user_id AND r.state IN ('waiting', 'processing')
        WHERE a.kind = 'held' GROUP BY a.id HAVING a.balance <> coalesce(sum(r.held), 0)""",
    "an ended request holds nothing": """
        SELECT 'request ' || id AS subject, 0 AS expected, held AS found FROM chat_requests
        WHERE held <> 0 AND state NOT IN ('waiting', 'processing')""",
    "an open request holds what the ledger says": """
        SELECT 'request ' || r.id AS subject, coalesce(h.amount, 0) AS expected, r.held AS found
        FROM chat_requests r LEFT JOIN ledger h ON h.request_id = r.id AND h.kind = 'hold'
        WHERE r.state IN ('waiting', 'processing') AND r.held <> coalesce(h.amount, 0)""",
    "a hold is released whole, once its request has ended": """
        SELECT 'request ' || h.request_id AS subject,
               CASE WHEN r.state IN ('waiting', 'processing') THEN 0 ELSE h.amount END AS expected,
               coalesce(f.amount, 0) AS found
        FROM ledger h LEFT JOIN ledger f ON f.request_id = h.request_id AND f.kind = 'release'
            AND f.source = h.target AND f.target = h.source
        LEFT JOIN chat_requests r ON r.id = h.request_id
        WHERE h.kind = 'hold' AND coalesce(f.amount, 0)
              <> CASE WHEN r.state IN ('waiting', 'processing') THEN 0 ELSE h.amount END""",
    "what is released was held": """
        SELECT 'request ' || f.request_id AS subject, coalesce(h.amount, 0) AS expected, f.amount AS found
        FROM ledger f LEFT JOIN ledger h ON h.request_id = f.request_id AND h.kind = 'hold'
        WHERE f.kind = 'release' AND h.amount IS DISTINCT FROM f.amount""",
    "a request's charge is its row of the ledger": """
        SELECT 'request ' || r.id AS subject, coalesce(c.amount, 0) AS expected, r.charged AS found
        FROM chat_requests r LEFT JOIN ledger c ON c.request_id = r.id AND c.kind = 'charge'
        WHERE r.charged <> coalesce(c.amount, 0)""",
    "a charge is paid by the requester, or by the Horde for the anonymous user": """
        SELECT 'request ' || r.id AS subject, 2 * r.user_id AS expected, c.source AS found
        FROM ledger c JOIN chat_requests r ON r.id = c.request_id
        WHERE c.kind = 'charge' AND CASE r.user_id WHEN 0 THEN c.source >= 0 ELSE c.source <> 2 * r.user_id END""",
    "a charge is the reward of the worker's owner": """
        SELECT 'job ' || j.id AS subject, 2 * j.owner_id AS expected, c.target AS found
        FROM ledger c JOIN chat_jobs j ON j.id = c.job_id
        WHERE c.kind = 'charge' AND c.target <> 2 * j.owner_id""",
    "a request is held, released and charged once": """
        SELECT 'request ' || request_id AS subject, 1 AS expected, count(*) AS found FROM ledger
        WHERE request_id IS NOT NULL GROUP BY request_id, kind HAVING count(*) > 1""",
    "an award is between the purse and a user, and all else is for a request": """
        SELECT 'row ' || id AS subject, NULL::bigint AS expected, amount AS found FROM ledger
        WHERE (kind = 'grant') <> (request_id IS NULL) OR (kind = 'grant' AND -1 NOT IN (source, target))""",
    "the anonymous user neither pays nor holds": """
        SELECT 'row ' || id AS subject, NULL::bigint AS expected, source AS found FROM ledger
        WHERE source IN (0, 1) OR target = 1""",
}
"""What holds of the ledger at every moment: each query returns what breaks it, amounts in hundredths of a kudos.

What a user paid to itself moves nothing, so its amount is held to its request's record alone, for as long as that is
kept."""
