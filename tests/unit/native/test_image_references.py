from typing import Any
from uuid import UUID, uuid4

import orjson

from horde.native.images.references import (
    find_references,
    iter_image_parts,
    referenced_images,
    replace_references,
    with_reference,
)

IMAGE = UUID("0b94a1a8-65e3-4ba0-9f5e-8d6f4f0c6a10")
PART = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "high"}}


def _payload(*parts: object) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": list(parts)}]})


def test_a_part_keeps_everything_but_its_url() -> None:
    referring = with_reference(PART, IMAGE)
    assert referring["image_url"] == {"url": f"horde-image:{IMAGE}", "detail": "high"}
    assert PART["image_url"] == {"url": "https://example.com/a.png", "detail": "high"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "text"},
        {"role": "user", "content": [{"type": "text"}, referring]},
    ]
    assert [place[:2] for place in iter_image_parts(messages)] == [(1, 1)]
    assert referenced_images(messages) == [IMAGE]


def test_references_are_found_and_replaced_where_their_urls_are_known() -> None:
    other = uuid4()
    stored = _payload(with_reference(PART, IMAGE), with_reference(PART, other))
    assert find_references(stored) == [IMAGE, other]
    replaced = orjson.loads(replace_references(stored, {IMAGE: 'https://horde/"quoted"\\'}))
    urls = [part["image_url"]["url"] for part in replaced["messages"][0]["content"]]
    assert urls == ['https://horde/"quoted"\\', f"horde-image:{other}"]


def test_text_with_a_reference_inside_is_none() -> None:
    stored = _payload(f'see "horde-image:{IMAGE}"', f"horde-image:{IMAGE} ", f"horde-image:{str(IMAGE).upper()}")
    assert find_references(stored) == []
    assert replace_references(stored, {IMAGE: "https://horde/a"}) == stored
