import base64
from typing import Any

import pytest

from horde.worker.origins import origin_of
from horde.worker.pictures import (
    PictureError,
    are_plain_contents,
    measure_pictures,
    picture_urls,
    replace_pictures,
    to_data_url,
)
from tests.support.picture_server import encode_picture, image_message


def data_url(size: tuple[int, int]) -> str:
    return to_data_url(encode_picture(size, kind="JPEG"))


def test_a_picture_becomes_data_with_its_own_format() -> None:
    picture = encode_picture(kind="PNG")
    assert to_data_url(picture) == "data:image/png;base64," + base64.b64encode(picture).decode()


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"GIF89a", encode_picture(kind="JPEG")[:12], encode_picture(kind="BMP")]
)
def test_what_is_no_picture_of_a_hordes_is_none(data: bytes) -> None:
    with pytest.raises(PictureError):
        to_data_url(data)


def test_a_picture_larger_than_a_horde_hands_out_is_refused_unseen() -> None:
    with pytest.raises(PictureError, match="larger"):
        to_data_url(encode_picture((5000, 5000), kind="PNG", mode="1", colour=0))


def test_pictures_are_replaced_in_their_order_and_nothing_else_is() -> None:
    messages = [{"role": "system", "content": "Be brief."}, image_message("a", "b")]
    replaced = replace_pictures(messages, ["data:1", ""])
    assert replaced[0] == messages[0]
    assert replaced[1]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:1", "detail": "low"}},
        {"type": "text", "text": " "},
    ]
    assert picture_urls(messages) == ["a", "b"]


@pytest.mark.rule("CTX-11")
@pytest.mark.parametrize(
    ("size", "small", "tokens"), [((64, 64), 256, 1280), ((1400, 1400), 20, 2500), ((28, 28), 0, 1)]
)
def test_a_picture_takes_what_its_size_or_its_encoder_asks_for(size: tuple[int, int], small: int, tokens: int) -> None:
    assert measure_pictures([image_message(data_url(size))], small) == tokens


@pytest.mark.parametrize(
    "url", ["http://horde.example/a.jpg", "data:image/jpeg;base64,%%%", "data:text/plain;base64,aGk="]
)
def test_what_is_no_picture_cannot_be_measured(url: str) -> None:
    with pytest.raises(PictureError):
        measure_pictures([image_message(url)], 1)


@pytest.mark.parametrize(
    ("content", "plain"),
    [
        ("text", True),
        (None, True),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}], True),
        ([{"type": "input_audio", "input_audio": {"url": "file:///etc/passwd"}}], False),
        ([{"type": "image_url", "image_url": "file:///etc/passwd"}], False),
        ([{"type": "image_url"}], False),
        (["text"], False),
        (7, False),
    ],
)
def test_a_content_holds_texts_and_pictures_and_nothing_that_a_server_would_open(
    content: Any,
    plain: bool,  # noqa: FBT001 - a table
) -> None:
    assert are_plain_contents([{"role": "user", "content": content}]) is plain


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Horde.example/api", "https://horde.example:443"),
        ("http://horde.example:8000/x?y", "http://horde.example:8000"),
        ("http://[::1]/", "http://[::1]:80"),
    ],
)
def test_an_origin_has_one_spelling(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "//horde.example", "ftp://horde.example", "http://", "http://a:x/"]
)
def test_what_is_no_address_of_the_web_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match=r"origin|[Pp]ort"):
        origin_of(url)
