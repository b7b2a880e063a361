import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from horde.local.errors import StartError
from horde.local.sample import SampleTimes, stream_reply


@contextlib.asynccontextmanager
async def front_that_answers(*lines: bytes, status: int = 200) -> AsyncIterator[str]:
    """Serve one answer to every request, and yield the base URL."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


async def read(base_url: str, times: SampleTimes | None = None) -> list[str]:
    return [piece async for piece in stream_reply(base_url, "key", "model", times or SampleTimes())]


async def test_the_text_comes_piece_by_piece() -> None:
    times = SampleTimes()
    lines = (
        b": horde queue_position=1 wait_time=2\n\n",
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "lo"}}]}\n\n',
        b'data: {"choices": []}\n\n',
        b"data: [DONE]\n\n",
    )
    async with front_that_answers(*lines) as base_url:
        assert await read(base_url, times) == ["Hel", "lo"]
    assert len(times.pieces) == 2
    assert times.first_piece_seconds is not None


async def test_a_refusal_is_one_sentence() -> None:
    async with front_that_answers(b'{"error": {"message": "No worker."}}', status=503) as base_url:
        with pytest.raises(StartError, match=r"The sample request was refused with 503: No worker\."):
            await read(base_url)


async def test_an_answer_that_is_no_json_is_one_sentence_too() -> None:
    async with front_that_answers(b"<html>", status=502) as base_url:
        with pytest.raises(StartError, match=r"refused with 502: no reason was given\."):
            await read(base_url)


async def test_an_error_event_ends_the_sample() -> None:
    lines = (b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n', b'data: {"error": {"message": "Gone."}}\n\n')
    async with front_that_answers(*lines) as base_url:
        with pytest.raises(StartError, match=r"The sample reply ended in an error: Gone\."):
            await read(base_url)


async def test_a_front_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(StartError, match="The sample request failed"):
        await read("http://127.0.0.1:9/v1")
