"""``horde up`` keeps the images of requests in its own folder."""

import asyncio
import base64
import re

import aiohttp
import pytest

from tests.support.picture_server import encode_picture, image_message, stored_pictures
from tests.support.waiting import WaitUntil
from tests.support.whole_horde import WholeHorde


@pytest.mark.rule("IMG-6")
async def test_an_image_is_kept_in_the_state_folder_until_its_request_is_cancelled(
    whole_horde: WholeHorde, wait_until: WaitUntil
) -> None:
    native = re.search(r"native Horde on (\S+)", whole_horde.output)
    assert native
    folder = whole_horde.state_dir / "images"
    url = "data:image/png;base64," + base64.b64encode(encode_picture()).decode()
    body = {"messages": [image_message(url)], "models": [whole_horde.printed("model")]}
    async with aiohttp.ClientSession(headers={"apikey": whole_horde.printed("API key")}) as session:
        async with session.post(f"{native[1]}/v2/generate/chat", json=body) as answer:
            assert answer.status == 202, await answer.text()
            request_id = (await answer.json())["id"]
        # The bundled model sees nothing, so that the request waits.
        assert len(await asyncio.to_thread(stored_pictures, folder)) == 1
        async with session.delete(f"{native[1]}/v2/generate/chat/status/{request_id}") as cancelled:
            assert cancelled.status == 200
    await wait_until(lambda: not stored_pictures(folder), description="the image to be deleted")
