"""Where pictures are kept: a folder with URLs of the Horde, a bucket with its own (IMG-6)."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from horde_sdk.worker.chat_declaration import ChatImageTransport
from yarl import URL

from horde.native.images.store import ImageStore, ImageStoreError, open_image_store
from tests.support.bucket import Bucket, serving_bucket
from tests.support.native_server import running_native, seeing
from tests.support.picture_server import encode_picture, image_message, stored_pictures
from tests.support.waiting import wait_until

IMAGE = UUID("0b94a1a8-65e3-4ba0-9f5e-8d6f4f0c6a10")
BASE64, FETCHED = ChatImageTransport.BASE64, ChatImageTransport.URL


@pytest.fixture
async def bucket(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    """A bucket, and the environment that an operator sets for it."""
    async with serving_bucket() as served:
        variables = {
            "AWS_ENDPOINT": served.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield served


async def test_a_folder_is_made_for_the_first_picture_and_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "pictures"
    store = open_image_store(str(folder), b"secret")
    assert stored_pictures(folder) == []
    with pytest.raises(ImageStoreError):
        await store.read(IMAGE)
    await store.put(IMAGE, b"a picture")
    assert await store.read(IMAGE) == b"a picture"
    assert folder.stat().st_mode & 0o777 == 0o700
    await store.delete([IMAGE, uuid4()])
    await store.delete([IMAGE])
    assert stored_pictures(folder) == []


async def test_a_signed_url_is_good_until_its_moment_for_its_picture_alone(tmp_path: Path) -> None:
    now = [1000.0]
    store = ImageStore(tmp_path, b"secret", clock=lambda: now[0])
    query = URL(await store.sign(IMAGE, 60, "http://horde/")).query
    expires, signature = query["expires"], query["signature"]

    assert store.is_signed(IMAGE, expires, signature)
    now[0] = 1060
    assert store.is_signed(IMAGE, expires, signature)
    now[0] = 1061
    assert not store.is_signed(IMAGE, expires, signature)
    now[0] = 1000
    assert not store.is_signed(uuid4(), expires, signature)
    assert not store.is_signed(IMAGE, "9" * 5000, signature)
    assert not store.is_signed(IMAGE, "0" + expires, signature)
    assert not ImageStore(tmp_path, b"other", clock=lambda: now[0]).is_signed(IMAGE, expires, signature)


async def test_a_bucket_keeps_reads_signs_and_deletes(bucket: Bucket) -> None:
    store = open_image_store("s3://pictures/horde", b"secret")
    assert not store.serves
    await store.put(IMAGE, b"a picture")
    assert bucket.objects == {f"/pictures/horde/chat/{IMAGE}.jpg": b"a picture"}
    assert await store.read(IMAGE) == b"a picture"
    assert (await store.sign(IMAGE, 90, "http://unused")).startswith(bucket.url)
    await store.delete([IMAGE, uuid4()])
    assert bucket.objects == {}
    with pytest.raises(ImageStoreError):
        await store.read(IMAGE)


async def test_a_bucket_that_refuses_is_an_error_of_the_store(bucket: Bucket) -> None:
    store = open_image_store("s3://pictures", b"secret")
    bucket.failing = True
    with pytest.raises(ImageStoreError):
        await store.put(IMAGE, b"a picture")
    with pytest.raises(ImageStoreError):
        await store.read(IMAGE)
    with pytest.raises(ImageStoreError):
        await store.delete([IMAGE])


@pytest.mark.rule("IMG-6", "IMG-9")
async def test_a_horde_over_a_bucket_hands_out_its_signed_urls_and_deletes_the_objects(
    migrated_database_url: str, bucket: Bucket
) -> None:
    async with running_native(migrated_database_url, image_store="s3://pictures/horde") as native:
        owner, client = await native.user("owner"), await native.user("client", kudos=100)
        await owner.come_online(declared=seeing(FETCHED))
        encoded = base64.b64encode(encode_picture((6, 4))).decode()
        await client.submit_id(messages=[image_message(f"data:image/png;base64,{encoded}")])
        assert len(bucket.objects) == 1

        job = await owner.pop_job(declared=seeing(FETCHED, BASE64))
        url = job["payload"]["messages"][0]["content"][1]["image_url"]["url"]
        async with native.session.get(URL(url, encoded=True)) as answer:
            assert (answer.status, await answer.read()) == (200, *bucket.objects.values())
        assert bucket.lent == [job["ttl"] + 60]
        own = (
            f"{native.api_url}/v2/images/{URL(url).path.rpartition('/')[2].removesuffix('.jpg')}?expires=1&signature=a"
        )
        async with native.session.get(own) as answer:
            assert answer.status == 404

        await owner.reply(job)
        await wait_until(lambda: not bucket.objects, description="the object to be deleted")
