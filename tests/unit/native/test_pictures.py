"""What becomes of each kind of picture that a client may send (IMG-2, IMG-6, decision U51)."""

import base64
import io
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from horde.native.images.pictures import MAX_IMAGE_BYTES, MAX_PIXELS, PictureError, decode_data_url, reencode
from tests.support.picture_server import encode_picture

_RED = pytest.approx((254, 0, 0), abs=6)
_UNDECODABLE = "is not a JPEG, PNG, WebP or GIF picture that can be decoded"


def _stored(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(reencode(data)))
    picture.load()
    assert (picture.format, picture.mode) == ("JPEG", "RGB")
    assert set(picture.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    return picture


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, rows: bytes = b"", depth: int = 8) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _halves(mode: str, left: Any, right: Any, kind: str, **options: Any) -> bytes:
    """Return a picture 40 pixels wide and 20 high whose halves differ."""
    picture = Image.new(mode, (40, 20), left)
    picture.paste(right, (20, 0, 40, 20))
    encoded = io.BytesIO()
    picture.save(encoded, kind, **options)
    return encoded.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_each_accepted_format_becomes_a_jpeg_of_the_same_look(kind: str) -> None:
    picture = _stored(encode_picture((30, 20), "red", kind))
    assert picture.size == (30, 20)
    assert picture.getpixel((3, 3)) == _RED


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO", "PPM", "TGA"])
def test_every_other_format_is_refused_whatever_pillow_could_do(kind: str) -> None:
    with pytest.raises(PictureError, match="JPEG, PNG, WebP or GIF"):
        reencode(encode_picture((30, 20), "red", kind))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', id="svg"),
        pytest.param(b"<!doctype html><title>Log in</title>", id="html"),
        pytest.param(b"%PDF-1.7\n", id="pdf"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", id="eps"),
        pytest.param(_png(0, 9), id="no width"),
        pytest.param(_png(9, 0), id="no height"),
        pytest.param(encode_picture((64, 64), "red", "PNG")[:60], id="truncated png"),
        pytest.param(encode_picture((640, 640), "red", "JPEG")[:-400], id="truncated jpeg"),
        pytest.param(encode_picture((64, 64), "red", "WEBP")[:40], id="truncated webp"),
        pytest.param(_png(4, 4, b"short"), id="too little data"),
    ],
)
def test_what_is_no_whole_picture_is_refused(data: bytes) -> None:
    with pytest.raises(PictureError, match=f"^{_UNDECODABLE}$|^has no pixels$"):
        reencode(data)


def test_transparency_becomes_white() -> None:
    picture = _stored(_halves("RGBA", (255, 0, 0, 255), (0, 0, 0, 0), "PNG"))
    assert picture.getpixel((5, 5)) == _RED
    assert picture.getpixel((35, 5)) == pytest.approx((255, 255, 255), abs=6)


def test_a_palette_with_a_transparent_colour_becomes_white_there() -> None:
    picture = _stored(_halves("P", 1, 0, "GIF", transparency=0))
    assert picture.getpixel((35, 5)) == pytest.approx((255, 255, 255), abs=6)


def test_sixteen_bit_grey_keeps_its_tones() -> None:
    encoded = io.BytesIO()
    Image.frombytes("I;16", (40, 20), struct.pack("<40H", *[0x4000] * 20, *[0xC000] * 20) * 20).save(encoded, "PNG")
    picture = _stored(encoded.getvalue())
    assert picture.getpixel((5, 5)) == pytest.approx((64, 64, 64), abs=4)
    assert picture.getpixel((35, 5)) == pytest.approx((192, 192, 192), abs=4)


def test_sixteen_bit_colour_keeps_its_tones() -> None:
    row = b"\x00" + struct.pack(">HHH", 0xFFFF, 0x8000, 0) * 8
    assert _stored(_png(8, 8, row * 8, depth=16)).getpixel((4, 4)) == pytest.approx((255, 128, 0), abs=6)


def test_cmyk_of_the_printing_press_becomes_rgb() -> None:
    assert _stored(encode_picture((16, 16), (0, 255, 255, 0), "JPEG", mode="CMYK")).getpixel((8, 8)) == _RED


def test_a_picture_taken_sideways_is_turned_upright_and_its_metadata_left_out() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "taken at home"
    data = _halves("RGB", "red", "blue", "JPEG", exif=exif, quality=95)
    assert b"taken at home" in data
    picture = _stored(data)
    assert picture.size == (20, 40)
    assert picture.getpixel((10, 5)) == _RED
    assert b"taken at home" not in reencode(data)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_pictures_are_turned_upright_too(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = _stored(_halves("RGBA", (255, 0, 0, 255), (0, 0, 0, 0), kind, exif=exif, lossless=True))
    assert picture.size == (20, 40)
    assert picture.getpixel((10, 5)) == _RED


@pytest.mark.parametrize(("mode", "colour"), [("1", 1), ("L", 255), ("LA", (255, 255)), ("P", 0)])
def test_pictures_of_few_tones_are_taken(mode: str, colour: object) -> None:
    assert _stored(encode_picture((9, 9), colour, "PNG", mode=mode)).size == (9, 9)


def test_a_single_transparent_colour_becomes_white() -> None:
    picture = _stored(_halves("RGB", (255, 0, 0), (0, 0, 255), "PNG", transparency=(0, 0, 255)))
    assert picture.getpixel((5, 5)) == _RED
    assert picture.getpixel((35, 5)) == pytest.approx((255, 255, 255), abs=6)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_picture_whose_metadata_is_broken_is_taken_as_it_lies() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _halves("RGB", "red", "blue", "JPEG", exif=exif)
    broken = data.replace(b"MM\x00*\x00\x00\x00\x08", b"MM\x00*\x00\x00\xff\xff")
    assert broken != data
    assert _stored(broken).size == (40, 20)


def test_what_hides_behind_a_picture_is_left_out() -> None:
    hidden = b"PK\x03\x04 a second file <script>"
    assert hidden not in reencode(encode_picture((16, 16), "red", "JPEG") + hidden)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "green", "blue")]
    encoded = io.BytesIO()
    frames[0].save(encoded, kind, save_all=True, append_images=frames[1:], duration=100)
    assert _stored(encoded.getvalue()).getpixel((8, 8)) == _RED


def test_further_frames_are_not_even_looked_at() -> None:
    frames = [Image.new("P", (16, 16), number) for number in range(200)]
    encoded = io.BytesIO()
    frames[0].save(encoded, "GIF", save_all=True, append_images=frames[1:])
    assert _stored(encoded.getvalue()[:900]).size == (16, 16)


def test_a_large_picture_is_stored_smaller() -> None:
    assert _stored(encode_picture((4096, 1024), "red", "PNG")).size == (2048, 512)
    assert _stored(encode_picture((6000, 1), "red", "PNG")).size == (2048, 1)


@pytest.mark.parametrize("max_bytes", [700_000, 50_000, 4_000])
def test_a_picture_gives_up_quality_and_then_size_to_fit_its_share(max_bytes: int) -> None:
    noise = Image.effect_noise((1024, 1024), 90).convert("RGB")
    encoded = io.BytesIO()
    noise.save(encoded, "PNG")
    stored = reencode(encoded.getvalue(), max_bytes)
    assert len(stored) <= max_bytes
    size = Image.open(io.BytesIO(stored)).size
    assert size == (1024, 1024) if max_bytes == 700_000 else size < (1024, 1024)


def _webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def _gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", *screen, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, *frame, 0)
        + b"\x02\x00;"
    )


_SIDE = 16383


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_png(MAX_PIXELS, 2), id="png"),
        pytest.param(_png(2**31 - 1, 2**31 - 1), id="largest png"),
        pytest.param(_gif((65535, 65535), (8, 8)), id="gif"),
        pytest.param(_gif((8, 8), (65535, 65535)), id="gif whose frame is larger than itself"),
        pytest.param(_webp(b"VP8X", bytes(4) + b"\xff\xff\xff" * 2 + bytes(20)), id="webp canvas"),
        pytest.param(
            _webp(b"VP8L", b"\x2f" + struct.pack("<I", (_SIDE - 1) | (_SIDE - 1) << 14) + bytes(20)), id="lossless webp"
        ),
        pytest.param(
            _webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", _SIDE, _SIDE) + bytes(20)), id="lossy webp"
        ),
    ],
)
def test_a_decompression_bomb_is_refused_by_its_header(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_arguments: object) -> None:
        raise AssertionError("A pixel was decoded")

    monkeypatch.setattr(Image.Image, "load", decode)
    with pytest.raises(PictureError, match=f"^has more than {MAX_PIXELS} pixels$"):
        reencode(data)


def test_a_jpeg_that_passes_over_its_picture_again_and_again_is_refused() -> None:
    data = encode_picture((64, 64), "red", "JPEG", progressive=True)
    head, scan = data[: data.index(b"\xff\xda")], data[data.index(b"\xff\xda") : -2]
    with pytest.raises(PictureError, match="is a JPEG of more than 32 scans"):
        reencode(head + scan * 33 + data[-2:])
    assert _stored(data).size == (64, 64)


def test_a_data_url_is_bounded_before_it_is_decoded() -> None:
    assert decode_data_url("data:image/png;base64," + base64.b64encode(b"abc").decode()) == b"abc"
    with pytest.raises(PictureError, match=f"has more than {MAX_IMAGE_BYTES} bytes"):
        decode_data_url("data:image/png;base64," + "!" * (MAX_IMAGE_BYTES // 3 * 4 + 5))


@pytest.mark.parametrize("encoded", ["a", "abc", "ab=c", "ab c", "aé==", "YWJj\n"])
def test_what_is_no_base64_is_refused(encoded: str) -> None:
    with pytest.raises(PictureError, match=r"^is not valid base64$"):
        decode_data_url(f"data:image/png;base64,{encoded}")


_SEEDS = [
    encode_picture((24, 16), "red", "PNG"),
    encode_picture((24, 16), "red", "JPEG", progressive=True),
    encode_picture((24, 16), "red", "WEBP"),
    encode_picture((24, 16), "red", "GIF"),
    _halves("RGB", "red", "blue", "JPEG", exif=Image.Exif().tobytes()),
]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_SEEDS), st.data())
def test_damaged_pictures_are_stored_or_refused_and_nothing_else(seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 8))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position : position + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
        damaged = damaged or bytearray(b"\x00")
    try:
        assert reencode(bytes(damaged)).startswith(b"\xff\xd8")
    except PictureError:
        return
