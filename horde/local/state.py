"""The folder in which ``horde up`` keeps what a second start finds again: the database and the keys of its users."""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from horde.local.errors import StartError, explain_os_error

__all__ = ["LocalKeys", "StateFolder"]


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """Keys of the users that ``horde up`` makes.

    Attributes:
        user: For clients of the front.
        worker: Owner of the worker, who earns its kudos.
    """

    user: str = field(repr=False)
    worker: str = field(repr=False)


class StateFolder:
    """A context manager: the folder, held by one ``horde up`` at a time.

    Args:
        path: The folder; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Take the folder.

        Raises:
            StartError: Another ``horde up`` holds it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise explain_os_error(error, f"use the folder {self.path}") from error
        try:
            # The kernel gives it back when this process ends, however it ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            os.close(self._lock)
            who = f" (process {holder})" if holder else ""
            raise StartError(
                f"Another horde up{who} runs on {self.path}; stop it, or choose another folder with --state-dir.",
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

    @property
    def logs(self) -> Path:
        """Folder of the parts' logs; each start writes them anew."""
        return self.path / "logs"

    @property
    def images(self) -> Path:
        """Folder of the images that requests hold while they are served; made by the native Horde."""
        return self.path / "images"

    def keys(self) -> LocalKeys:
        """Return the users' keys, made on first use and readable by this user alone.

        Raises:
            StartError: The file cannot be read or written, or is damaged.
        """
        path = self.path / "keys.json"
        try:
            if path.is_file():
                return LocalKeys(**json.loads(path.read_text()))
            keys = LocalKeys(user=f"sk-horde-{secrets.token_urlsafe(24)}", worker=secrets.token_urlsafe(24))
            _write_secret(path, json.dumps(asdict(keys)))
        except OSError as error:
            raise explain_os_error(error, f"keep the users' keys in {path}") from error
        except (ValueError, TypeError) as error:
            raise StartError(f"The file {path} is damaged; remove it, and new keys are made.") from error
        return keys


def _write_secret(path: Path, text: str) -> None:
    """Write a file whole or not at all, readable by this user alone."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.rename(path)
