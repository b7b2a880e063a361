"""JSON bodies as the HTTP client wants them."""

import io
from typing import Final

import orjson

__all__ = ["JSON_HEADERS", "json_payload"]

JSON_HEADERS: Final = {"Content-Type": "application/json"}

_STREAMED_BYTES: Final = 1024 * 1024
"""Larger bodies are handed over as files: the client writes those piece by piece and warns of a block."""


def json_payload(body: object) -> bytes | io.BytesIO:
    """Return a body as JSON."""
    data = orjson.dumps(body)
    return io.BytesIO(data) if len(data) >= _STREAMED_BYTES else data
