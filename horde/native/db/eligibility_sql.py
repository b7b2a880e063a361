"""The rule of eligibility as SQL: one text, used by pops, counts and reasons alike.

:mod:`horde.native.eligibility` is the same rule in Python. Arguments are aliases of the statement they are put into,
never values.
"""

__all__ = ["NEEDS_COLUMNS", "ONLINE_SECONDS", "online", "serves"]

ONLINE_SECONDS = 120
"""A worker is online that was heard from within so many seconds, or holds a job whose time has not run out."""

NEEDS_COLUMNS = (
    "needs, needs_images, max_length, max_context_length, tools_temperature, only_workers, ignore_workers, "
    "trusted_only, fast_only, failed_workers"
)
"""The columns of a request that eligibility reads, copied to its rows of the queue."""


def online(worker: str) -> str:
    """Return the condition that a worker is online and takes chat jobs.

    Args:
        worker: Alias of a row of ``workers``.
    """
    return (
        f"({worker}.model_id IS NOT NULL AND NOT {worker}.maintenance AND "
        f"({worker}.last_seen_at > now() - interval '{ONLINE_SECONDS} seconds' OR EXISTS ("
        f"SELECT FROM chat_jobs held WHERE held.worker_id = {worker}.id AND held.state = 'processing' "
        f"AND held.deadline_at > now())))"
    )


def serves(worker: str, owner: str, request: str, *, fast_limit: str) -> str:
    """Return the condition that a worker may serve a request; the model is compared by the statement's own join.

    Args:
        worker: Alias of a row of ``workers``.
        owner: Alias of its owner's row of ``users``.
        request: Alias of a row of ``chat_requests`` or ``chat_queue``.
        fast_limit: Placeholder of the Horde's speed limit, tokens per second.
    """
    return f"""(
        NOT {worker}.maintenance
        AND {request}.needs <@ {worker}.features
        AND {request}.max_length <= {worker}.max_length
        AND {request}.max_context_length <= {worker}.max_context_length
        AND ({request}.tools_temperature IS NULL OR {worker}.tools_max_temperature IS NULL
             OR {request}.tools_temperature <= {worker}.tools_max_temperature)
        AND (NOT {request}.needs_images OR {worker}.image_transports && '{{url,base64}}'::text[])
        AND ({request}.only_workers IS NULL OR {worker}.id = ANY({request}.only_workers))
        AND {worker}.id <> ALL({request}.ignore_workers)
        AND (NOT {request}.trusted_only OR {owner}.trusted)
        AND (NOT {request}.fast_only OR coalesce({worker}.tokens_per_second, 0) >= {fast_limit})
    )"""
