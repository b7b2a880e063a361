"""Pictures through the whole chain: the official SDK, the front, the Horde."""

import asyncio
import base64

import openai
import pytest
from horde_sdk.worker.chat_declaration import ChatImageTransport
from openai.types.chat import ChatCompletionUserMessageParam

from tests.integration.conftest import Chain
from tests.support.native_server import MODEL, seeing
from tests.support.picture_server import encode_picture
from tests.support.scripted_model import ScriptedModel, tokens
from tests.support.scripted_talents import Talents
from tests.support.serving import serving
from tests.support.waiting import wait_until
from tests.support.working import working


def _asking(url: str) -> ChatCompletionUserMessageParam:
    text = "Which colour?"
    return {
        "role": "user",
        "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}],
    }


@pytest.mark.rule("IMG-4", "IMG-7", "IMG-9")
async def test_a_picture_reaches_the_worker_and_its_price_the_client(chain: Chain) -> None:
    await chain.worker.come_online(declared=seeing(ChatImageTransport.BASE64))
    url = "data:image/png;base64," + base64.b64encode(encode_picture((3, 3))).decode()
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        asked = asyncio.create_task(
            client.chat.completions.create(model=MODEL, messages=[_asking(url)]), name="test - question"
        )
        job = await chain.worker.pop_job(declared=seeing(ChatImageTransport.BASE64), wait_seconds=20)
        part = job["payload"]["messages"][0]["content"][1]["image_url"]
        assert part["url"].startswith("data:image/jpeg;base64,")
        assert part["detail"] == "low"
        await chain.worker.reply(job, "Red.")
        reply = await asked
    assert reply.choices[0].message.content == "Red."
    assert reply.model_extra is not None
    assert reply.model_extra["x_horde"]["kudos"] > 5


@pytest.mark.rule("IMG-6", "IMG-9")
async def test_a_picture_goes_all_the_way_to_the_model_server_and_its_answer_back(chain: Chain) -> None:
    model = ScriptedModel(talents=Talents(sees=True))
    model.window = 16384
    model.play(tokens("A red picture."))
    url = "data:image/png;base64," + base64.b64encode(encode_picture((3, 3))).decode()
    key = chain.worker.api_key
    async with (
        serving(model) as model_url,
        openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client,
        working(chain.native.api_url, f"{model_url}/v1", api_key=key),
    ):
        await wait_until(lambda: _is_served(client), description="the worker", seconds=30)
        model.bodies.clear()
        stream = await client.chat.completions.create(
            model="scripted-1B", messages=[_asking(url)], max_tokens=64, stream=True
        )
        answer = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    assert answer == "A red picture."
    [body] = model.bodies
    given = body["messages"][0]["content"][1]["image_url"]["url"]
    assert given.startswith("data:image/jpeg;base64,")
    assert given != url


async def _is_served(client: openai.AsyncOpenAI) -> bool:
    cards = [card async for card in client.models.list()]
    return any((card.model_extra or {})["architecture"]["input_modalities"] == ["text", "image"] for card in cards)


@pytest.mark.rule("IMG-5")
@pytest.mark.parametrize("url", ["http://169.254.169.254/latest/meta-data", "data:image/png;base64,AAAA"])
async def test_a_picture_that_cannot_be_had_is_400_at_its_part(chain: Chain, url: str) -> None:
    await chain.worker.come_online(declared=seeing(ChatImageTransport.URL))
    async with openai.AsyncOpenAI(base_url=chain.base_url, api_key=chain.api_key, max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=MODEL, messages=[_asking(url)])
    assert (refused.value.code, refused.value.param) == ("BadRequest", "messages[0].content[1].image_url")
