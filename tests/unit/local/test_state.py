import stat
from pathlib import Path

import pytest

from horde.local.errors import StartError
from horde.local.state import StateFolder


def test_keys_are_made_once_and_found_again(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as first:
        keys = first.keys()
    with StateFolder(tmp_path / "state") as second:
        assert second.keys() == keys
    assert keys.user != keys.worker


def test_nobody_else_may_read_the_keys(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as state:
        state.keys()
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_the_keys_are_not_part_of_what_is_printed_of_them(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as state:
        keys = state.keys()
    assert keys.user not in repr(keys)
    assert keys.worker not in repr(keys)


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with (
        StateFolder(tmp_path),
        pytest.raises(StartError, match=r"Another horde up \(process \d+\) runs on .*--state-dir"),
        StateFolder(tmp_path),
    ):
        pass


def test_a_folder_is_free_again_once_it_was_left(tmp_path: Path) -> None:
    with StateFolder(tmp_path):
        pass
    with StateFolder(tmp_path) as state:
        assert state.path == tmp_path


def test_a_damaged_key_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"user": ')
    with StateFolder(tmp_path) as state, pytest.raises(StartError, match="is damaged; remove it"):
        state.keys()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="Cannot use the folder"), StateFolder(tmp_path / "file" / "state"):
        pass
