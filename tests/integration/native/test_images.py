"""Pictures from a submit to a worker, and their end; the pictures are fetched from a real server."""

import asyncio
import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from horde_sdk.worker.chat_declaration import ChatImageTransport
from PIL import Image

from tests.support.native_server import Caller, NativeServer, declaration, seeing
from tests.support.picture_server import PictureServer, encode_picture, image_message, stored_pictures
from tests.support.waiting import wait_until

URL, BASE64 = ChatImageTransport.URL, ChatImageTransport.BASE64


@pytest.fixture
def native(picturing: NativeServer) -> NativeServer:
    """A Horde that keeps pictures."""
    return picturing


def _urls(job: Mapping[str, Any]) -> list[str]:
    parts = [part for message in job["payload"]["messages"] for part in message["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def _decode(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def _read_data_url(url: str) -> bytes:
    head, _, encoded = url.partition(",")
    assert head == "data:image/jpeg;base64"
    return base64.b64decode(encoded, validate=True)


async def _wait_for_deletion(native: NativeServer, store: Path) -> None:
    async def is_gone() -> bool:
        return not stored_pictures(store) and not await native.pool.fetchval("SELECT count(*) FROM chat_images")

    await wait_until(is_gone, description="the picture to be deleted", seconds=20)


@pytest.mark.rule("IMG-4", "IMG-6", "IMG-3")
async def test_an_image_is_fetched_once_during_submit_and_inlined_for_a_worker_that_asks_for_base64(
    owner: Caller, client: Caller, pictures: PictureServer, store: Path
) -> None:
    await owner.come_online(declared=seeing(BASE64))
    url = pictures.lay("/red.png", encode_picture((40, 20), "red"))

    await client.submit_id(messages=[image_message(url)])
    assert pictures.asked == {"/red.png": 1}
    assert len(stored_pictures(store)) == 1

    job = await owner.pop_job(declared=seeing(BASE64))
    picture = _decode(_read_data_url(_urls(job)[0]))
    assert (picture.format, picture.size) == ("JPEG", (40, 20))
    assert picture.getpixel((5, 5)) == pytest.approx((254, 0, 0), abs=3)
    assert job["payload"]["messages"][0]["content"][1]["image_url"]["detail"] == "low"
    assert pictures.asked == {"/red.png": 1}


@pytest.mark.rule("IMG-2", "IMG-6", "IMG-9")
async def test_a_worker_that_fetches_receives_a_signed_url_which_expires(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online(declared=seeing(URL, BASE64))
    encoded = base64.b64encode(encode_picture((9, 7), "blue", "WEBP")).decode()
    await client.submit_id(messages=[image_message(f"data:image/webp;base64,{encoded}")])

    job = await owner.pop_job(declared=seeing(URL, BASE64))
    [url] = _urls(job)
    assert url.startswith(native.base_url + "/api/v2/images/")
    async with native.session.get(url) as answer:
        assert (answer.status, answer.content_type) == (200, "image/jpeg")
        assert _decode(await answer.read()).size == (9, 7)

    head, _, signature = url.rpartition("=")
    path, _, query = url.partition("?")
    later = query.replace("expires=", "expires=1")
    for wrong in (path, f"{head}={signature[::-1]}", f"{path}?{later}", f"{path}?expires=x&signature=é", head):
        async with native.session.get(wrong) as answer:
            assert (answer.status, (await answer.json())["rc"]) == (404, "ImageNotFound")


@pytest.mark.rule("IMG-7")
async def test_each_image_adds_five_kudos(owner: Caller, client: Caller, pictures: PictureServer) -> None:
    await owner.come_online(declared=seeing(BASE64))
    url = pictures.lay("/a.png")
    plain = await client.submit()
    one = await client.submit(messages=[image_message(url)])
    two = await client.submit(messages=[image_message(url, url)])
    assert one.body["kudos"] == pytest.approx(plain.body["kudos"] + 5)
    assert two.body["kudos"] == pytest.approx(plain.body["kudos"] + 10)

    before = (await client.call("GET", "/v2/find_user")).body["kudos"]
    jobs = [await owner.pop_job(declared=seeing(BASE64)) for _ in range(3)]
    rewards = sorted([(await owner.reply(job)).body["reward"] for job in jobs])
    assert rewards == pytest.approx([rewards[0], rewards[0] + 5, rewards[0] + 10])
    assert (await client.call("GET", "/v2/find_user")).body["kudos"] == pytest.approx(before - sum(rewards))


@pytest.mark.rule("IMG-9")
async def test_an_image_request_waits_for_a_worker_that_declares_vision_and_a_transport(
    owner: Caller, client: Caller, pictures: PictureServer
) -> None:
    await owner.come_online()
    request_id = await client.submit_id(messages=[image_message(pictures.lay("/a.png"))])
    assert (await owner.pop()).body["id"] is None
    reason = (await client.status(request_id))["impossible_reason"]
    assert reason["missing_declarations"] == ["image_transports", "vision"]

    blind = declaration().to_pop_fields() | {"chat_features": seeing(URL).to_pop_fields()["chat_features"]}
    assert (await owner.pop(**blind)).body["id"] is None
    reason = (await client.status(request_id))["impossible_reason"]
    assert reason["missing_declarations"] == ["image_transports"]

    assert (await owner.pop_job(name="seeing", declared=seeing(URL)))["id"]


@pytest.mark.rule("IMG-6")
@pytest.mark.parametrize("ending", ["reply", "cancel", "expiry", "retention"])
async def test_a_picture_is_deleted_with_its_request(
    native: NativeServer, owner: Caller, client: Caller, store: Path, pictures: PictureServer, ending: str
) -> None:
    await owner.come_online(declared=seeing(BASE64))
    request_id = await client.submit_id(messages=[image_message(pictures.lay("/a.png"))])
    assert len(stored_pictures(store)) == 1
    if ending == "reply":
        await owner.reply(await owner.pop_job(declared=seeing(BASE64)))
    elif ending == "cancel":
        await client.cancel(request_id)
    else:
        await native.make_time_pass(1201 if ending == "expiry" else 2402)

    await _wait_for_deletion(native, store)


async def test_a_copy_of_a_submit_neither_fetches_nor_stores_again(
    native: NativeServer, owner: Caller, client: Caller, store: Path, pictures: PictureServer
) -> None:
    await owner.come_online(declared=seeing(BASE64))
    url = pictures.lay("/a.png")
    body = {"messages": [image_message(url)], "operation_key": str(uuid4())}
    pictures.held.clear()
    async with asyncio.TaskGroup() as group:
        copies = [group.create_task(client.submit(**body), name=f"test - copy {number}") for number in range(3)]
        await wait_until(lambda: pictures.asked["/a.png"], description="the fetch")
        pictures.held.set()
    later = await client.submit(**body)

    answers = [copy.result() for copy in copies] + [later]
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 202]
    assert len({answer.body["id"] for answer in answers}) == 1
    assert pictures.asked == {"/a.png": 1}
    assert len(stored_pictures(store)) == await native.pool.fetchval("SELECT count(*) FROM chat_images") == 1


async def test_a_dry_run_prices_images_without_fetching_them(
    owner: Caller, client: Caller, store: Path, pictures: PictureServer
) -> None:
    await owner.come_online(declared=seeing(BASE64))
    plain = await client.submit(dry_run=True)
    answer = await client.submit(messages=[image_message(pictures.lay("/a.png"))], dry_run=True)
    assert (answer.status, answer.body["kudos"]) == (200, pytest.approx(plain.body["kudos"] + 5))
    assert not pictures.asked
    assert not stored_pictures(store)
