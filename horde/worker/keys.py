"""Keys that are kept outside of the configuration: in a variable of the environment, or in a file of their own."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from horde.worker.settings import KEY_SOURCES
from horde.worker.sources import Given, Layer

__all__ = ["KEYS", "group_of", "readable_by_others", "resolve_keys"]

KEYS: Final = ("api_key", "backend_api_key")
_MAX_KEY_BYTES: Final = 64 * 1024
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_READABLE: Final = stat.S_IRGRP | stat.S_IROTH


def group_of(setting: str) -> str:
    """Return the setting that one stands for: that of a key, or itself."""
    return setting.removesuffix("_env").removesuffix("_file") if setting in KEY_SOURCES else setting


def readable_by_others(path: Path) -> bool:
    """Whether other users of this machine may read a file, as far as its mode tells."""
    try:
        return os.name == "posix" and bool(path.stat().st_mode & _READABLE)
    except OSError:
        return False


def resolve_keys(
    layer: Layer, environment: Mapping[str, str], problems: list[str], warnings: list[str]
) -> dict[str, Given]:
    """Return settings with every key itself in the place of where it is.

    Args:
        layer: The settings.
        environment: The environment.
        problems: Told what cannot be found.
        warnings: Told of files that others can read.
    """
    resolved = {name: given for name, given in layer.items() if name not in KEY_SOURCES}
    for name in KEY_SOURCES:
        given = layer.get(name)
        if given is None:
            continue
        if name.endswith("_env"):
            key = _from_variable(given, environment, problems)
        else:
            key = _from_file(given, problems, warnings)
        if key is not None:
            resolved[group_of(name)] = Given(key, given.place)
    return resolved


def _from_variable(given: Given, environment: Mapping[str, str], problems: list[str]) -> str | None:
    name = str(given.value)
    key = environment.get(name)
    if not key:
        # A key that was put here by mistake is not shown.
        named = f" {name}" if _VARIABLE.fullmatch(name) else ""
        problems.append(f"{given.place} names a variable{named} that is not set.")
    return key or None


def _from_file(given: Given, problems: list[str], warnings: list[str]) -> str | None:
    path = (given.folder or Path()) / Path(str(given.value)).expanduser()
    try:
        with path.open("rb") as file:
            key = file.read(_MAX_KEY_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        problems.append(f"{given.place} names a file that cannot be read: {reason}.")
        return None
    if not key:
        problems.append(f"{given.place} names a file that is empty.")
        return None
    if readable_by_others(path):
        warnings.append(f"{path} holds a key and other users of this machine can read it: chmod 600 {path}")
    return key
