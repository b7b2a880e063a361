"""Histogram bucket boundaries shared by the programs (requirements MET-35, decision U34)."""

__all__ = ["BUCKETS_REQUEST_LIFECYCLE_SECONDS", "BUCKETS_SECONDS"]

BUCKETS_SECONDS: tuple[float, ...] = (
    *(round(step * 10.0**exponent, 6) for exponent in range(-3, 3) for step in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5)),
    1000.0,
    1500.0,
    1800.0,
)
"""Latencies from a millisecond to half an hour, dense enough that a quantile is within a third of the truth."""

BUCKETS_REQUEST_LIFECYCLE_SECONDS: tuple[float, ...] = (
    0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
)  # fmt: skip
"""Times in the life of a request, which waits for volunteers: from an idle pool to past its expiry."""
