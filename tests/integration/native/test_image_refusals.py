"""Pictures that cannot be had, stored or handed out: what is told, and that nothing is left or charged."""

import asyncio
import base64
import threading
from ipaddress import ip_network
from pathlib import Path
from uuid import uuid4

import pytest
from horde_sdk.worker.chat_declaration import ChatImageTransport

from horde.native.errors import RefusalError
from horde.native.images import keeper as keeper_module
from horde.native.images.fetch import ImageFetcher
from horde.native.images.keeper import ImageKeeper
from horde.native.images.store import open_image_store
from tests.support.native_server import Answer, Caller, NativeServer, running_native, seeing
from tests.support.picture_server import PictureServer, encode_picture, image_message, stored_pictures
from tests.support.waiting import wait_until

BASE64, URL = ChatImageTransport.BASE64, ChatImageTransport.URL
_TRACES = ("chat_requests", "chat_payloads", "chat_queue", "chat_operations", "chat_images")


@pytest.fixture
def native(picturing: NativeServer) -> NativeServer:
    """A Horde that keeps pictures."""
    return picturing


@pytest.fixture(autouse=True)
async def _seeing_worker(owner: Caller) -> None:
    await owner.come_online(declared=seeing(BASE64))


async def _assert_nothing_is_left(native: NativeServer, client: Caller, store: Path) -> None:
    for table in _TRACES:
        assert await native.pool.fetchval(f"SELECT count(*) FROM {table}") == 0, table  # noqa: S608 - names from above
    assert (await client.call("GET", "/v2/find_user")).body["kudos"] == 1000
    assert not stored_pictures(store)


def _put_file(place: Path) -> None:
    place.write_text("a file where the folder should be")


def _remove_file(place: Path) -> None:
    place.unlink()


def _inline(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()


@pytest.mark.rule("IMG-4", "IMG-5")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        pytest.param("/missing.png", "is answered with the status 404", id="missing"),
        pytest.param("/page", "is not a JPEG, PNG, WebP or GIF picture that can be decoded", id="html"),
        pytest.param("http://127.0.0.2/a.png", "could not be fetched from a public address in time", id="inside"),
        pytest.param(
            "http://169.254.169.254/latest", "could not be fetched from a public address in time", id="metadata"
        ),
        pytest.param("HTTP://[::ffff:10.0.0.1]/", "could not be fetched from a public address in time", id="mapped"),
        pytest.param("data:image/png;base64,%%%", "is not valid base64", id="base64"),
        pytest.param(
            _inline(b"<svg/>", "svg+xml"), "is not a JPEG, PNG, WebP or GIF picture that can be decoded", id="svg"
        ),
        pytest.param(
            _inline(encode_picture()[:50]),
            "is not a JPEG, PNG, WebP or GIF picture that can be decoded",
            id="truncated",
        ),
    ],
)
async def test_a_picture_that_cannot_be_had_refuses_the_request_and_leaves_nothing(
    native: NativeServer, client: Caller, store: Path, pictures: PictureServer, url: str, why: str
) -> None:
    pictures.lay("/page", b"<!doctype html><title>Log in</title>", content_type="image/png")
    bad = pictures.base_url + url if url.startswith("/") else url
    messages = [{"role": "user", "content": "Hi"}, image_message(pictures.lay("/good.png"), bad)]

    answer = await client.submit(messages=messages, operation_key=str(uuid4()))

    assert (answer.status, answer.rc) == (400, "BadRequest")
    assert answer.body["message"] == f"'messages[1].content[2].image_url' {why}."
    await _assert_nothing_is_left(native, client, store)


async def test_a_seventeenth_picture_is_refused_before_any_is_fetched(client: Caller, pictures: PictureServer) -> None:
    url = pictures.lay("/a.png")
    answer = await client.submit(messages=[image_message(*[url] * 8), image_message(*[url] * 9)])
    assert (answer.status, answer.rc) == (400, "BadRequest")
    assert answer.body["message"] == "'messages[1].content[9].image_url' is one image more than the 16 of a request."
    assert not pictures.asked


@pytest.mark.rule("IMG-10")
async def test_a_store_that_cannot_be_written_is_unavailable_and_nothing_is_charged(
    native: NativeServer, owner: Caller, client: Caller, store: Path, pictures: PictureServer
) -> None:
    _put_file(store)
    message = image_message(pictures.lay("/a.png"))
    answer = await client.submit(messages=[message])
    assert (answer.status, answer.rc) == (503, "ChatImageStorageUnavailable")
    _remove_file(store)
    await native.make_time_pass(601)

    async def is_forgotten() -> bool:
        return not await native.pool.fetchval("SELECT count(*) FROM chat_images")

    await wait_until(is_forgotten, description="the rows to be swept")
    await _assert_nothing_is_left(native, client, store)
    await owner.come_online(declared=seeing(BASE64))
    assert (await client.submit(messages=[message])).status == 202


async def test_what_a_submit_that_is_refused_last_had_stored_is_deleted_at_once(
    native: NativeServer, owner: Caller, store: Path, pictures: PictureServer
) -> None:
    await owner.come_online(declared=seeing(BASE64, max_length=8192))
    poor = await native.user("poor")
    answer = await poor.submit(messages=[image_message(pictures.lay("/a.png"))], params={"max_length": 8000})
    assert (answer.status, answer.rc) == (403, "KudosUpfront")
    assert await native.pool.fetchval("SELECT count(*) FROM chat_images") == 0
    assert not stored_pictures(store)


async def test_a_submit_whose_operation_was_cancelled_meanwhile_leaves_no_picture(
    native: NativeServer, client: Caller, store: Path, pictures: PictureServer
) -> None:
    key = str(uuid4())
    pictures.held.clear()
    submit = asyncio.create_task(
        client.submit(messages=[image_message(pictures.lay("/a.png"))], operation_key=key), name="test - submit"
    )
    await wait_until(lambda: pictures.asked, description="the fetch")
    assert (await client.cancel_operation(key)).body == {"tombstone": True}
    pictures.held.set()
    answer: Answer = await submit
    assert (answer.status, answer.rc) == (409, "ChatOperationCancelled")
    assert await native.pool.fetchval("SELECT count(*) FROM chat_images") == 0
    assert not stored_pictures(store)


async def test_what_a_crashed_submit_left_is_swept_but_never_what_one_may_still_take(
    native: NativeServer, store: Path
) -> None:
    async with (
        ImageFetcher() as fetcher,
        ImageKeeper(native.pool, open_image_store(str(store), b"secret"), fetcher, sweep_seconds=3600) as keeper,
    ):
        await keeper.keep({uuid4(): b"stored just before the process was killed"})
        assert await keeper.sweep() == 0
        await native.make_time_pass(590)
        assert await keeper.sweep() == 0
    assert len(stored_pictures(store)) == 1
    await native.make_time_pass(20)
    await wait_until(lambda: not stored_pictures(store), description="the orphan to be swept")


async def test_a_picture_that_is_gone_costs_the_worker_an_answer_and_the_request_waits_for_it(
    owner: Caller, client: Caller, store: Path, pictures: PictureServer
) -> None:
    request_id = await client.submit_id(messages=[image_message(pictures.lay("/a.png"))])
    [path] = stored_pictures(store)
    aside = path.rename(store / "aside")
    refused = await owner.pop(declared=seeing(BASE64), running=[], pop_id=str(uuid4()))
    assert (refused.status, refused.rc) == (503, "ChatImageStorageUnavailable")

    aside.rename(path)
    job = await owner.pop_job(declared=seeing(BASE64), running=[], pop_id=str(uuid4()))
    await owner.reply(job)
    assert (await client.status(request_id))["finished"] == 1


async def test_any_process_serves_what_another_signed_under_the_public_address(
    native: NativeServer,
    owner: Caller,
    client: Caller,
    store: Path,
    pictures: PictureServer,
    migrated_database_url: str,
) -> None:
    await client.submit_id(messages=[image_message(pictures.lay("/a.png"))])
    public = {"image_store": str(store), "public_url": "https://horde.example/sub/"}
    async with running_native(migrated_database_url, **public) as other:
        elsewhere = other.caller(owner.api_key)
        job = await elsewhere.pop_job(declared=seeing(URL))
    url = job["payload"]["messages"][0]["content"][1]["image_url"]["url"]
    assert url.startswith("https://horde.example/sub/api/v2/images/")
    async with native.session.get(url.replace("https://horde.example/sub", native.base_url)) as answer:
        assert (answer.status, answer.headers["x-content-type-options"]) == (200, "nosniff")


async def test_text_that_looks_like_a_stored_reference_stays_text(
    native: NativeServer, owner: Caller, client: Caller, pictures: PictureServer
) -> None:
    await client.submit_id(messages=[image_message(pictures.lay("/a.png"))])
    image = await native.pool.fetchval("SELECT id FROM chat_images")
    await (await native.user("curious")).submit_id(messages=[{"role": "user", "content": f"horde-image:{image}"}])
    texts = [(await owner.pop_job(declared=seeing(URL)))["payload"]["messages"][0]["content"] for _ in range(2)]
    assert f"horde-image:{image}" in texts


@pytest.mark.rule("IMG-7")
async def test_pictures_of_messages_that_were_dropped_are_neither_stored_nor_priced(
    owner: Caller, client: Caller, store: Path, pictures: PictureServer
) -> None:
    url = pictures.lay("/a.png")
    one = await client.submit(messages=[image_message(url)])
    messages = [image_message(*[url] * 8), {"role": "assistant", "content": "A square."}, image_message(url)]
    cut = await client.submit(messages=messages)
    assert cut.body["kudos"] == one.body["kudos"]
    assert len(stored_pictures(store)) == 2
    jobs = [await owner.pop_job(declared=seeing(BASE64)) for _ in range(2)]
    assert [len(job["payload"]["messages"]) for job in jobs] == [1, 1]


async def test_a_picture_that_drips_is_given_up_when_the_time_of_all_is_over(
    native: NativeServer, store: Path, pictures: PictureServer
) -> None:
    pictures.held.clear()
    async with (
        ImageFetcher([ip_network("127.0.0.1")], step_seconds=60) as fetcher,
        ImageKeeper(
            native.pool, open_image_store(str(store), b""), fetcher, sweep_seconds=3600, take_in_seconds=0.1
        ) as keeper,
    ):
        with pytest.raises(RefusalError, match=r"^'messages' holds images that could not be fetched"):
            await keeper.take_in([image_message(pictures.lay("/a.png"))])


async def test_two_pictures_are_decoded_at_a_time_beside_the_loop(
    client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, lock = threading.Event(), threading.Lock()
    at_once: list[int] = []
    count = 0

    def decode(data: bytes, _max_bytes: int) -> bytes:
        nonlocal count
        with lock:
            count += 1
            at_once.append(count)
        assert release.wait(30)
        with lock:
            count -= 1
        return data

    monkeypatch.setattr(keeper_module, "reencode", decode)
    url = _inline(encode_picture())
    submits = [
        asyncio.create_task(client.submit(messages=[image_message(url, url)]), name="test - submit") for _ in range(3)
    ]
    await wait_until(lambda: len(at_once) == 2, description="two decoders")
    assert (await client.call("GET", "/v2/find_user")).status == 200
    release.set()
    assert [(await submit).status for submit in submits] == [202, 202, 202]
    assert (len(at_once), max(at_once)) == (6, 2)
