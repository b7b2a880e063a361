"""Records of open requests: encrypted, bound to their operation, readable only with the fronts' secret."""

import pytest

from horde.oai.horde_client import Caller
from horde.oai.sealed_caller import CallerSealer, SealError

CALLER = Caller("a user's key", "app:1:none", "192.0.2.7")
SECRET = "a secret that all fronts share"


def test_another_front_with_the_secret_reads_what_one_wrote() -> None:
    record = CallerSealer(SECRET).seal("operation", CALLER, 1790000000.5)
    assert CallerSealer(SECRET).open("operation", record) == (CALLER, 1790000000.5)


def test_a_record_shows_neither_key_nor_address_and_no_two_are_alike() -> None:
    sealer = CallerSealer(SECRET)
    records = {sealer.seal("operation", CALLER, 1.0) for _ in range(100)}
    assert len(records) == 100
    for record in records:
        assert b"user's key" not in record
        assert b"192.0.2.7" not in record


def test_fronts_with_another_secret_keep_apart() -> None:
    other = CallerSealer("another secret of some fronts")
    assert other.realm != CallerSealer(SECRET).realm == CallerSealer(SECRET).realm
    with pytest.raises(SealError):
        other.open("operation", CallerSealer(SECRET).seal("operation", CALLER, 1.0))


def test_a_record_of_another_operation_or_a_damaged_one_is_refused() -> None:
    sealer = CallerSealer(SECRET)
    record = sealer.seal("operation", CALLER, 1.0)
    with pytest.raises(SealError):
        sealer.open("another", record)
    for damaged in (b"", b"\x01", record[:-1], record[:20], b"\x02" + record[1:], record[:-1] + b"\x00\x00"):
        with pytest.raises(SealError):
            sealer.open("operation", damaged)
