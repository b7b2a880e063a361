import os
from pathlib import Path

import pytest

from horde.local import run_as
from horde.local.errors import StartError
from horde.local.run_as import RunAs, choose_run_as

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
as_anyone_else = pytest.mark.skipif(os.geteuid() == 0, reason="root becomes another user")


@as_anyone_else
def test_an_ordinary_user_runs_it_as_itself(tmp_path: Path) -> None:
    assert choose_run_as(tmp_path, Path("/bin/true")) == RunAs()


@as_root
def test_root_gives_the_folder_to_the_user_that_it_becomes(tmp_path: Path) -> None:
    chosen = choose_run_as(tmp_path, Path("/bin/ls"))
    assert chosen.owner is not None
    assert chosen.owner[0] != 0
    assert (tmp_path.stat().st_uid, tmp_path.stat().st_gid) == chosen.owner


@as_root
def test_a_cluster_keeps_its_owner(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.chown(tmp_path / "data", 54321, 54321)
    assert choose_run_as(tmp_path, Path("/bin/ls")).owner == (54321, 54321)


@as_root
def test_a_private_parent_folder_costs_one_capability_and_is_not_changed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    folder = private / "postgres"
    folder.mkdir(parents=True)
    private.chmod(0o700)
    chosen = choose_run_as(folder, Path("/bin/ls"))
    assert "--ambient-caps=+dac_override" in chosen.privileges
    assert private.stat().st_mode & 0o777 == 0o700


@as_root
def test_a_program_that_no_other_user_can_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"refuses to run as root, and no other user can reach .* --database-url"):
        choose_run_as(tmp_path, tmp_path / "missing")


@as_root
def test_root_without_setpriv_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_as, "setpriv_path", lambda: None)
    with pytest.raises(StartError, match=r"there is no setpriv .* --database-url"):
        choose_run_as(tmp_path, Path("/bin/ls"))
