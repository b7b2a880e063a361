"""How a stored message refers to its pictures, and what a worker receives in that place; pure.

An image part keeps its form and its ``detail``; its URL is ``horde-image:<id>`` until a pop knows the worker.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import orjson

__all__ = ["find_references", "iter_image_parts", "referenced_images", "replace_references", "with_reference"]

_SCHEME: Final = "horde-image:"
_REFERENCE: Final = re.compile(
    rb'"' + _SCHEME.encode() + rb'([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"'
)
"""A whole JSON string: text that a client wrote cannot be one unless it is that string alone, whose id is nobody's."""


def iter_image_parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Return message index, part index and part of each image, in order."""
    for message_index, message in enumerate(messages):
        content = message.get("content")
        for part_index, part in enumerate(content if isinstance(content, list) else ()):
            if part.get("type") == "image_url":
                yield message_index, part_index, part


def with_reference(part: Mapping[str, Any], image: UUID) -> dict[str, Any]:
    """Return an image part that refers to a stored picture."""
    return {**part, "image_url": {**part["image_url"], "url": f"{_SCHEME}{image}"}}


def referenced_images(messages: Sequence[Mapping[str, Any]]) -> list[UUID]:
    """Return the pictures that messages refer to, in order."""
    return [UUID(part["image_url"]["url"].removeprefix(_SCHEME)) for _, _, part in iter_image_parts(messages)]


def find_references(answer: bytes) -> list[UUID]:
    """Return what looks like a reference in JSON."""
    return [UUID(found.decode()) for found in _REFERENCE.findall(answer)]


def replace_references(answer: bytes, urls: Mapping[UUID, str]) -> bytes:
    """Return JSON with each reference to one of these pictures replaced by its URL."""

    def url_of(found: re.Match[bytes]) -> bytes:
        url = urls.get(UUID(found.group(1).decode()))
        return found.group(0) if url is None else orjson.dumps(url)

    return _REFERENCE.sub(url_of, answer)
