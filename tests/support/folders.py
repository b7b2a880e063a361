"""Where servers of a test run keep their files: in the checkout, one folder per process, removed at its end."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["TEST_FILES", "server_folder"]

TEST_FILES = Path(__file__).resolve().parents[2] / ".horde" / "test"
"""Where tests write; in the checkout and not in git."""


@contextlib.contextmanager
def server_folder(name: str) -> Iterator[Path]:
    """Make a folder for one server of this process, and remove it afterwards.

    What earlier runs left, because they were killed, is removed first.
    """
    _remove_leftovers()
    folder = TEST_FILES / str(os.getpid()) / name
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def _remove_leftovers() -> None:
    for folder in TEST_FILES.glob("[0-9]*"):
        if not _is_running(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
