"""Pictures of jobs: declared when the model was seen to read them, taken from the Horde and from nowhere else."""

from typing import Any

import pytest

from horde.worker.picture_fetcher import PictureFetcher
from horde.worker.pictures import PictureError, to_data_url
from tests.support.picture_server import encode_picture, image_message, serving_pictures
from tests.support.scripted_model import ScriptedModel, tokens
from tests.support.scripted_pops import ScriptedPops, chat_job
from tests.support.scripted_talents import Talents
from tests.support.serving import Served
from tests.support.waiting import WaitUntil
from tests.support.working import working

type Horde = Served[ScriptedPops]
type Model = Served[ScriptedModel]

PICTURE = encode_picture(kind="JPEG")


@pytest.fixture
def seeing(model: Model) -> Model:
    """A model server whose model reads pictures."""
    model.server.talents = Talents(sees=True)
    model.server.window = 16384
    model.server.play(tokens("A red picture."))
    return model


async def serve(horde: Horde, model: Model, message: dict[str, Any], wait_until: WaitUntil, **settings: object) -> Any:
    job = chat_job(model="scripted-1B", messages=[message], max_context_length=12000)
    horde.server.give(job)
    async with working(horde.url, model.url, **settings):
        await wait_until(lambda: horde.server.submit_of(job["id"]), description="the submit")
    return horde.server.submit_of(job["id"])


@pytest.mark.rule("IMG-9", "WRK-7")
async def test_vision_and_its_transports_are_declared_when_two_pictures_were_told_apart(
    horde: Horde, seeing: Model, wait_until: WaitUntil
) -> None:
    async with working(horde.url, seeing.url):
        await wait_until(lambda: horde.server.pops, description="a pop")
    pop = horde.server.pops[0]
    assert "vision" in pop["chat_features"]
    assert pop["image_transports"] == ["base64", "url"]


@pytest.mark.rule("IMG-9", "WRK-7")
async def test_a_model_that_answers_every_picture_alike_reads_none(
    horde: Horde, model: Model, wait_until: WaitUntil
) -> None:
    async with working(horde.url, model.url):
        await wait_until(lambda: horde.server.pops, description="a pop")
    pop = horde.server.pops[0]
    assert "vision" not in pop["chat_features"]
    assert pop["image_transports"] == []


@pytest.mark.rule("IMG-3", "IMG-6")
@pytest.mark.parametrize("transport", ["url", "base64"])
async def test_a_picture_reaches_the_model_as_data_by_either_transport(
    horde: Horde, seeing: Model, wait_until: WaitUntil, transport: str
) -> None:
    horde.server.pictures["one"] = PICTURE
    url = f"{horde.url}/pictures/one?signature=x" if transport == "url" else to_data_url(PICTURE)
    reply = await serve(horde, seeing, image_message(url), wait_until)
    assert reply["message"]["content"] == "A red picture."
    [body] = seeing.server.bodies
    part = body["messages"][0]["content"][1]
    assert part == {"type": "image_url", "image_url": {"url": to_data_url(PICTURE), "detail": "low"}}
    assert all("apikey" not in headers for headers in horde.server.picture_headers)


@pytest.mark.parametrize("name", ["missing", "moved", "page"])
async def test_a_picture_that_cannot_be_had_faults_its_job_and_says_nothing_against_the_server(
    horde: Horde, seeing: Model, wait_until: WaitUntil, name: str
) -> None:
    horde.server.pictures |= {"moved": None, "other": PICTURE, "page": b"<html>", "one": PICTURE}
    fault = await serve(horde, seeing, image_message(f"{horde.url}/pictures/{name}"), wait_until)
    assert (fault["state"], fault["fault_reason"]) == ("faulted", "generation_error")
    assert seeing.server.bodies == []


async def test_a_picture_elsewhere_is_not_fetched_unless_the_operator_names_the_place() -> None:
    async with serving_pictures() as bucket:
        message = image_message(bucket.lay("/red.png"))
        with pytest.raises(PictureError, match="HORDE_WORKER_PICTURE_ORIGINS"):
            await PictureFetcher("https://horde.example").fetch([message])
        assert bucket.asked == {}
        [fetched] = await PictureFetcher("https://horde.example", [bucket.base_url]).fetch([message])
    assert fetched["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://horde.example/a", "//elsewhere/a", "http://[", ""])
async def test_a_url_that_is_none_of_the_webs_is_never_followed(url: str) -> None:
    with pytest.raises(PictureError):
        await PictureFetcher("https://horde.example").fetch([image_message(url)])


async def test_a_horde_that_does_not_know_its_own_address_is_asked_at_the_one_the_worker_knows() -> None:
    async with serving_pictures() as horde:
        horde.lay("/api/v2/images/one", encode_picture())
        message = image_message("https://127.0.0.1:9/api/v2/images/one?signature=x")
        await PictureFetcher(f"{horde.base_url}/api").fetch([message])
    assert horde.asked == {"/api/v2/images/one": 1}


async def test_a_picture_without_end_is_left_at_its_bound() -> None:
    async with serving_pictures() as horde:
        horde.endless.add("/endless")
        with pytest.raises(PictureError, match="10 MiB"):
            await PictureFetcher(horde.base_url).fetch([image_message(f"{horde.base_url}/endless")])


async def test_one_picture_named_twice_is_fetched_once() -> None:
    async with serving_pictures() as horde:
        url = horde.lay("/one")
        await PictureFetcher(horde.base_url).fetch([image_message(url, url)])
    assert horde.asked == {"/one": 1}


@pytest.mark.rule("CTX-11", "WRK-4")
async def test_a_prompt_whose_pictures_may_not_fit_is_refused(
    horde: Horde, seeing: Model, wait_until: WaitUntil
) -> None:
    picture = to_data_url(encode_picture((3600, 3600), kind="JPEG"))
    fault = await serve(horde, seeing, image_message(picture), wait_until)
    assert fault["fault_reason"] == "prompt_overflow"
