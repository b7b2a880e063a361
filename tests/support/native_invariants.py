"""What holds of the Horde's database at every moment, whatever was called in which order."""

from typing import Final

import asyncpg

from horde.native.db import reads
from horde.native.db.engine import Pool

__all__ = ["broken_invariants"]

_INVARIANTS: Final = {
    "all balances sum to zero": "SELECT 1 FROM accounts HAVING sum(balance) <> 0",
    "every balance is the sum of its rows": reads.FIND_WRONG_BALANCES,
    "what is held is what open requests hold": """
        SELECT a.id FROM accounts a LEFT JOIN chat_requests r ON r.user_id = a.user_id
        WHERE a.kind = 'held' GROUP BY a.id HAVING a.balance <> coalesce(sum(r.held), 0)""",
    "an ended request holds nothing": """
        SELECT id FROM chat_requests WHERE held > 0 AND state NOT IN ('waiting', 'processing')""",
    "a hold is released when its request ends": """
        SELECT r.id FROM chat_requests r
        JOIN ledger held ON held.request_id = r.id AND held.kind = 'hold'
        LEFT JOIN ledger released ON released.request_id = r.id AND released.kind = 'release'
        WHERE (released.id IS NULL) <> (r.state IN ('waiting', 'processing'))
           OR released.amount <> held.amount""",
    "what a request was charged is what its worker's owner was paid": """
        SELECT r.id FROM chat_requests r LEFT JOIN ledger c ON c.request_id = r.id AND c.kind = 'charge'
        LEFT JOIN chat_jobs j ON j.id = c.job_id
        WHERE r.charged <> coalesce(c.amount, 0) OR (c.id IS NOT NULL AND c.target <> 2 * j.owner_id)""",
    "the anonymous user is never charged": "SELECT id FROM ledger WHERE source IN (0, 1)",
    "only replies and cancels are charged": """
        SELECT id FROM chat_requests WHERE charged > 0 AND state NOT IN ('replied', 'cancelled')""",
    "a waiting request stands in the queue once for each model, and no other does": """
        SELECT r.id FROM chat_requests r LEFT JOIN chat_queue q ON q.request_id = r.id
        GROUP BY r.id HAVING count(q.model) <> CASE r.state WHEN 'waiting' THEN cardinality(r.models) ELSE 0 END""",
    "a processing request has one running job, and no other has any": """
        SELECT r.id FROM chat_requests r
        LEFT JOIN chat_jobs j ON j.request_id = r.id AND j.state = 'processing'
        GROUP BY r.id HAVING count(j.id) <> (r.state = 'processing')::integer
            OR (r.state = 'processing' AND max(j.id::text) <> r.job_id::text)""",
    "a replied request has one reply, of the job that counts, and no other has any": """
        SELECT r.id FROM chat_requests r LEFT JOIN chat_replies p ON p.request_id = r.id
        LEFT JOIN chat_jobs j ON j.id = p.job_id
        WHERE (p.request_id IS NOT NULL) <> (r.state = 'replied')
           OR (p.request_id IS NOT NULL AND (p.job_id <> r.job_id OR j.state <> 'replied'))""",
    "a job that replied belongs to a request that is replied": """
        SELECT j.id FROM chat_jobs j JOIN chat_requests r ON r.id = j.request_id
        WHERE j.state = 'replied' AND r.state <> 'replied'""",
    "no request is tried more than three times": "SELECT id FROM chat_requests WHERE attempts NOT BETWEEN 0 AND 3",
}


async def broken_invariants(pool: Pool) -> dict[str, list[asyncpg.Record]]:
    """Return the invariants that do not hold, each with the rows that break it; all from one moment.

    Args:
        pool: Connections to the Horde's database.
    """
    broken = {}
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        for name, query in _INVARIANTS.items():
            if rows := await connection.fetch(query):
                broken[name] = rows
    return broken
