from horde.worker.backoff import Backoff


def test_delays_double_to_the_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(1.0, 5.0, random_unit=lambda: 1.0)
    assert [backoff.next_delay() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.next_delay() == 1.0


def test_jitter_takes_away_at_most_half() -> None:
    assert Backoff(2.0, 5.0, random_unit=lambda: 0.0).next_delay() == 1.0


def test_what_the_other_side_asks_for_is_obeyed_within_reason() -> None:
    backoff = Backoff(1.0, 5.0)
    assert backoff.next_delay(at_least=20.0) == 20.0
    assert backoff.next_delay(at_least=1e9) == 50.0
