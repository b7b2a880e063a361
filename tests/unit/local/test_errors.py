import errno

import pytest

from horde.local.errors import explain_os_error, ran_out_of_space


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "Cannot make it: the disk is full; free some space and start again."),
        (errno.EACCES, "Cannot make it: this user may not write there; choose another --state-dir."),
        (errno.EROFS, "Cannot make it: this user may not write there; choose another --state-dir."),
        (errno.ENOTDIR, "Cannot make it: Not a directory."),
    ],
)
def test_a_refusal_of_the_system_is_one_sentence(number: int, sentence: str) -> None:
    assert str(explain_os_error(OSError(number, "…"), "make it")) == sentence


def test_a_full_disk_is_recognised_in_the_words_of_other_programs() -> None:
    assert ran_out_of_space(["starting", 'FATAL: could not write "pg_wal/xlogtemp.7": No space left on device'])
    assert not ran_out_of_space(["starting", "ready"])
