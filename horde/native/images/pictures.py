"""Pictures as clients send them, made into the JPEG that is stored (U51); blocking, called in threads.

The size is read from the header and bounded before a pixel is decoded, so that a decompression bomb costs nothing.
What is stored holds none of the original's bytes: no metadata, no second format hidden behind the first.
"""

import base64
import binascii
import io
import struct
import warnings
import zlib
from typing import Final

from PIL import Image, ImageOps

__all__ = ["MAX_IMAGES", "MAX_IMAGE_BYTES", "MAX_PIXELS", "STORED_BYTES", "PictureError", "decode_data_url", "reencode"]

MAX_IMAGES: Final = 16
"""Images of one request."""

MAX_IMAGE_BYTES: Final = 10 * 1024 * 1024
"""Largest image as it is sent."""

MAX_PIXELS: Final = 64 * 1000 * 1000
"""Largest image once decoded."""

_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF")
_STORED_SIDE: Final = 2048
"""Longest side of what is stored, pixels: vision models scale down to less."""

_QUALITIES: Final = (85, 70, 50)
"""Tried in turn until the JPEG is small enough."""

STORED_BYTES: Final = 8 * 1024 * 1024
"""All pictures of a request as they are stored: in base64 they fit into a job beside its text."""
_WEBP_HEADER: Final = 30
_SAMPLE_MODES: Final = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})

_MAX_SCANS: Final = 32
"""Passes of a progressive JPEG over its whole picture: tools write ten, a bomb as many as fit into the file."""

_SCAN_MARKER: Final = b"\xff\xda"
"""Within a scan's own data the byte 0xFF is always followed by a zero or a restart marker."""

_DECODER_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What decoders raise for broken files."""

# What is odd in a client's file is nothing that an operator can act on, and no line of a log.
warnings.filterwarnings("ignore", module=r"PIL\.")


class PictureError(Exception):
    """It is no picture that is taken; the message ends a sentence."""


def decode_data_url(url: str) -> bytes:
    """Return the bytes of a ``data:image/...;base64,`` URL, whose length is bounded before it is decoded.

    Raises:
        PictureError: It is too large or not base64.
    """
    encoded = url[url.index(",") + 1 :]
    if len(encoded) > (MAX_IMAGE_BYTES + 2) // 3 * 4:
        raise PictureError(f"has more than {MAX_IMAGE_BYTES} bytes")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise PictureError("is not valid base64") from None


def reencode(data: bytes, max_bytes: int = STORED_BYTES) -> bytes:
    """Return a picture as JPEG: first frame, turned upright, on white, at most 2,048 pixels a side, no metadata.

    Args:
        data: The picture as it was sent.
        max_bytes: Largest result, at least a few kilobytes; quality is given up for it, then size.

    Raises:
        PictureError: It is not a JPEG, PNG, WebP or GIF, is too large, or cannot be decoded.
    """
    _check_webp(data)
    if data.startswith(b"\xff\xd8") and data.count(_SCAN_MARKER) > _MAX_SCANS:
        raise PictureError(f"is a JPEG of more than {_MAX_SCANS} scans")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            _check_size(*picture.size)
            return _encode(_draw(picture), max_bytes)
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large() from None
    except _DECODER_ERRORS:
        raise PictureError("is not a JPEG, PNG, WebP or GIF picture that can be decoded") from None


def _too_large() -> PictureError:
    return PictureError(f"has more than {MAX_PIXELS} pixels")


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _too_large()
    if width < 1 or height < 1:
        raise PictureError("has no pixels")


def _check_webp(data: bytes) -> None:
    """Bound a WebP by its own header: its decoder takes memory for the whole canvas when it is opened."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < _WEBP_HEADER:
        return
    kind = data[12:16]
    if kind == b"VP8X":
        _check_size(int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1)
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        _check_size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    elif kind == b"VP8 ":
        _check_size(int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF)


def _draw(picture: Image.Image) -> Image.Image:
    # A JPEG is decoded at a fraction of its size where that is enough.
    picture.draft("RGB", (_STORED_SIDE, _STORED_SIDE))
    # Made small before anything else, since each further step on the whole picture takes its memory once more.
    small = _as_samples(picture)
    small.thumbnail((_STORED_SIDE, _STORED_SIDE))
    upright = ImageOps.exif_transpose(small)
    if upright.has_transparency_data:
        flat = Image.new("RGB", upright.size, "white")
        flat.paste(upright.convert("RGB"), mask=upright.getchannel("A"))
    else:
        flat = upright.convert("RGB")
    flat.info = {}
    return flat


def _encode(picture: Image.Image, max_bytes: int) -> bytes:
    for quality in _QUALITIES:
        stored = io.BytesIO()
        picture.save(stored, "JPEG", quality=quality)
        if stored.tell() <= max_bytes:
            return stored.getvalue()
    return _encode(picture.reduce(2), max_bytes)


def _as_samples(picture: Image.Image) -> Image.Image:
    """Return a picture of 8-bit samples, which can be made smaller: palettes and single transparent colours cannot."""
    if picture.mode.startswith("I"):
        # 16-bit grey; converting it at once would make all but the darkest tones white.
        return picture.point(lambda value: value * (1 / 256)).convert("L")
    if picture.mode in _SAMPLE_MODES and "transparency" not in picture.info:
        return picture
    return picture.convert("RGBA" if picture.has_transparency_data else "RGB")
