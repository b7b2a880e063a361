"""Traffic by application: which part of a ``Client-Agent`` it is counted under, and how much is kept of it (NAT-19).

Requests on record count by themselves; a record that is deleted is added to its day's row in the same statement
(:data:`horde.native.db.queries.PURGE_RECORDS`), so that the sum is exact at every moment and a submit writes nothing
for it.
"""

__all__ = ["LIST_APPLICATIONS", "MAX_APPLICATIONS_A_DAY", "PURGE_TRAFFIC", "TRAFFIC_DAYS", "add_to_traffic"]

TRAFFIC_DAYS = 400
"""Days that are kept; at most :data:`MAX_APPLICATIONS_A_DAY` rows each."""

MAX_APPLICATIONS_A_DAY = 1000
"""Applications told apart in one day: names come from clients. What comes after them is counted as ``(others)``."""

_MAX_NAME_CHARACTERS = 128


def _application(agent: str) -> str:
    """Return the expression of the application that a ``Client-Agent`` (``name:version:contact``) names."""
    name = f"left(btrim(split_part({agent}, ':', 1)), {_MAX_NAME_CHARACTERS})"
    return f"coalesce(nullif({name}, ''), 'unknown')"


def add_to_traffic(requests: str, *, most: str) -> str:
    """Return the end of a statement: it adds requests that are deleted to the rows of their days.

    Args:
        requests: CTE of rows of ``chat_requests``.
        most: Placeholder of :data:`MAX_APPLICATIONS_A_DAY`.
    """
    return f""", counted AS (
    SELECT (created_at AT TIME ZONE 'UTC')::date AS day, {_application("client_agent")} AS application,
           count(*) AS requests, count(*) FILTER (WHERE state = 'replied') AS replies, sum(charged)::bigint AS charged
    FROM {requests} GROUP BY 1, 2
), placed AS (
    SELECT c.*, EXISTS (
               SELECT FROM application_traffic t WHERE t.day = c.day AND t.application = c.application) AS known,
           row_number() OVER (PARTITION BY day ORDER BY requests DESC, application)
               + (SELECT count(*) FROM application_traffic t WHERE t.day = c.day) AS place
    FROM counted c
)
INSERT INTO application_traffic AS t (day, application, requests, replies, charged)
SELECT day, CASE WHEN known OR place <= {most}::integer THEN application ELSE '(others)' END, sum(requests)::bigint,
       sum(replies)::bigint, sum(charged)::bigint
FROM placed GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (day, application) DO UPDATE SET
    requests = t.requests + excluded.requests, replies = t.replies + excluded.replies,
    charged = t.charged + excluded.charged
"""


PURGE_TRAFFIC = "DELETE FROM application_traffic WHERE day < (now() AT TIME ZONE 'UTC')::date - $1::integer"
"""Forgets what is older than so many days."""

LIST_APPLICATIONS = f"""
SELECT application, sum(requests)::bigint AS requests, sum(replies)::bigint AS replies, sum(charged)::bigint AS kudos
FROM (
    SELECT day, application, requests, replies, charged FROM application_traffic
    UNION ALL
    SELECT (created_at AT TIME ZONE 'UTC')::date, {_application("client_agent")}, 1, (state = 'replied')::integer,
           charged
    FROM chat_requests
) traffic
WHERE day > (now() AT TIME ZONE 'UTC')::date - $1::integer
GROUP BY application ORDER BY 2 DESC, 1 LIMIT 10000
"""
"""What each application sent in the last days, today among them: requests taken in, replies, and kudos charged."""
