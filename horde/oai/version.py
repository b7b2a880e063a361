"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

__all__ = ["FRONT_VERSION"]


def _read_version() -> str:
    try:
        return version("horde-oai")
    except PackageNotFoundError:
        return "0"


FRONT_VERSION: Final = _read_version()
"""Sent to the Horde with every request; ``0`` when run from a tree that is not installed."""
