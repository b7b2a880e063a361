"""Pictures in a job's messages: which parts they are, and how many tokens they may take. Pure.

What reaches the model server holds texts and pictures as data, nothing else: a server may follow a URL in a message, or
open a file that one names, and neither is a stranger's to choose.
"""

import base64
import binascii
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from PIL import Image, UnidentifiedImageError

__all__ = [
    "PictureError",
    "are_plain_contents",
    "measure_pictures",
    "picture_url",
    "picture_urls",
    "replace_pictures",
    "to_data_url",
]

_MAX_PIXELS: Final = 4096 * 4096
_FORMATS: Final = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp", "GIF": "gif"}
"""Formats that a Horde hands out; nothing else is opened."""

_PIXELS_PER_TOKEN: Final = 28 * 28
"""The finest grid in use that follows a picture's size: a token for 28 by 28 pixels (Qwen-VL)."""

_TILES: Final = 5
"""Encoders of one size cut a large picture into up to four tiles beside the whole (LLaVA)."""

_DATA: Final = "data:image/"


class PictureError(Exception):
    """A picture of a job cannot be had, or is none; the message is for the operator's log and holds nothing of it."""


def are_plain_contents(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether every content is text, nothing, or a list of texts and pictures."""
    return all(_is_plain(message.get("content")) for message in messages)


def picture_urls(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the URLs of all pictures, in order; a part without one has an empty one."""
    return [picture_url(part) for message in messages for part in _pictures(message)]


def picture_url(part: Mapping[str, Any]) -> str:
    """Return the URL of a picture's part; empty when it has none."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    return url if isinstance(url, str) else ""


def replace_pictures(messages: Sequence[Mapping[str, Any]], urls: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Return the messages with other URLs of their pictures.

    Args:
        messages: The messages; not changed.
        urls: One for each picture, in order; an empty one leaves a blank text in the picture's place.
    """
    waiting = iter(urls)
    return tuple(_replace(message, waiting) for message in messages)


def to_data_url(data: bytes) -> str:
    """Return a picture as a data URL.

    Raises:
        PictureError: It is none, or larger than any that a Horde hands out.
    """
    kind, _ = _open(data)
    return f"{_DATA}{kind};base64,{base64.b64encode(data).decode()}"


def measure_pictures(messages: Iterable[Mapping[str, Any]], tokens_of_small_one: int) -> int:
    """Return a number of tokens that the pictures of some messages do not pass.

    Args:
        messages: Messages whose pictures are data URLs.
        tokens_of_small_one: What a small picture was seen to take at most.

    Raises:
        PictureError: One is none.
    """
    total = 0
    for url in picture_urls(messages):
        _, pixels = _open(_decode(url))
        total += max(_TILES * tokens_of_small_one, math.ceil(pixels / _PIXELS_PER_TOKEN))
    return total


def _pictures(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "image_url":
            yield part


def _is_plain(content: object) -> bool:
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, Mapping)
        and (
            (part.get("type") == "text" and isinstance(part.get("text"), str))
            or (part.get("type") == "image_url" and bool(picture_url(part)))
        )
        for part in content
    )


def _replace(message: Mapping[str, Any], urls: Iterator[str]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    parts = [_with_url(part, next(urls)) if part.get("type") == "image_url" else part for part in content]
    return {**message, "content": parts}


def _with_url(part: Mapping[str, Any], url: str) -> dict[str, Any]:
    if not url:
        return {"type": "text", "text": " "}
    image = part.get("image_url")
    return {**part, "image_url": {**(image if isinstance(image, Mapping) else {}), "url": url}}


def _decode(url: str) -> bytes:
    head, _, encoded = url.partition(",")
    if not head.startswith(_DATA) or not head.endswith(";base64"):
        raise PictureError("A picture is no data.")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise PictureError("A picture is not base64.") from error


def _open(data: bytes) -> tuple[str, int]:
    """Return a picture's format and pixels by its header; nothing is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=list(_FORMATS)) as picture:
            kind, pixels = _FORMATS[picture.format or ""], picture.width * picture.height
    except (UnidentifiedImageError, OSError, ValueError, KeyError, SyntaxError, Image.DecompressionBombError) as error:
        raise PictureError("A picture is of no known format.") from error
    if pixels > _MAX_PIXELS:
        raise PictureError("A picture is larger than a Horde hands out.")
    return kind, pixels
