"""Which addresses this process connects to, as the interpreter's own audit tells."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["recorded_connections"]

_EVENTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_recorders: list[list[str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _recorders and event in _EVENTS:
        for recorder in _recorders:
            recorder.append(str(arguments))


sys.addaudithook(_watch)


@contextmanager
def recorded_connections() -> Iterator[list[str]]:
    """Record every address that is connected to or looked up, as text; no library can pass the hook by."""
    recorder: list[str] = []
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)
