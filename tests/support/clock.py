"""A clock that a test moves by hand."""

__all__ = ["FakeClock"]


class FakeClock:
    """Monotonic seconds that only pass when told.

    Args:
        now: First reading.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
