"""Which user a program runs as that refuses to be root (PostgreSQL does).

An ordinary user runs it as itself. Root gives the folder to another user and starts the program as that one. Often
that user cannot get there: a checkout under ``/root`` (mode 0700), programs linked from a cache of root's. Nothing
outside the folder is changed for that; instead the process keeps one right of root's, to pass permission checks
(``CAP_DAC_OVERRIDE``), and no other.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from horde.local.errors import StartError
from horde.local.process import setpriv_path

__all__ = ["RunAs", "choose_run_as"]

_USERS = ("postgres", "nobody")
_PASS_PERMISSION_CHECKS = (
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
    # Without this the kernel's answer to access(2), by which PostgreSQL finds its programs, leaves the right out.
    "--securebits=+no_setuid_fixup",
)


@dataclass(frozen=True, slots=True)
class RunAs:
    """A user, and how ``setpriv`` becomes it.

    Attributes:
        owner: User and group id that own what the program writes; None for this process's own user.
        privileges: Arguments of ``setpriv``.
    """

    owner: tuple[int, int] | None = None
    privileges: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        """Give a file or folder to the user."""
        if self.owner is not None:
            os.chown(path, *self.owner)


def choose_run_as(folder: Path, program: Path) -> RunAs:
    """Decide how to run a program that refuses to be root, and give it its folder.

    Args:
        folder: Where it keeps its data; it exists.
        program: An executable beside its own, tried with ``--version``.

    Raises:
        StartError: This process is root and can become no user that could run the program there.
        OSError: The folder cannot be given away.
    """
    if os.geteuid() != 0:
        return RunAs()
    setpriv = setpriv_path()
    if setpriv is None:
        raise StartError(
            "PostgreSQL refuses to run as root and there is no setpriv (of util-linux) to start it as another user; run"
            " this as an ordinary user, or name a server of your own with --database-url.",
        )
    owner = _choose_owner(folder)
    become = (f"--reuid={owner[0]}", f"--regid={owner[1]}", "--clear-groups")
    RunAs(owner).own(folder)
    for privileges in (become, become + _PASS_PERMISSION_CHECKS):
        if _can_run([setpriv, *privileges, "--"], folder, program):
            return RunAs(owner, privileges)
    raise StartError(
        "PostgreSQL refuses to run as root, and no other user can reach"
        f" {folder} here; move the checkout out of a private folder, run this as an ordinary user, or name a server of"
        " your own with --database-url.",
    )


def _choose_owner(folder: Path) -> tuple[int, int]:
    """Return who owns the cluster already, else the system's user for it, else the one without rights."""
    status = (folder / "data" if (folder / "data").is_dir() else folder).stat()
    if status.st_uid != 0:
        return status.st_uid, status.st_gid
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise StartError(
        "PostgreSQL refuses to run as root and this machine has neither a user postgres nor nobody; run this as an"
        " ordinary user, or name a server of your own with --database-url.",
    )


def _can_run(prefix: list[str], folder: Path, program: Path) -> bool:
    # One look tells all: the folder can be entered and written, the program and its libraries can be read.
    script = 'cd "$1" && test -w . && exec "$2" --version'
    argv = [*prefix, "/bin/sh", "-c", script, "sh", str(folder), str(program)]
    return subprocess.run(argv, capture_output=True, check=False, cwd="/", timeout=20).returncode == 0  # noqa: S603 - ours
