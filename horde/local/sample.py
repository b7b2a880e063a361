"""One streamed reply through the front, as any client would ask for it: proof that the whole works."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import orjson

from horde.local.errors import StartError

__all__ = ["SAMPLE_QUESTION", "SampleTimes", "stream_reply"]

SAMPLE_QUESTION = "What is a library? Answer in two short sentences."
_MAX_TOKENS = 80

_DATA = b"data:"
_TIMEOUT = aiohttp.ClientTimeout(total=120, sock_connect=10, sock_read=60)


@dataclass(slots=True)
class SampleTimes:
    """When the pieces of a reply came.

    Attributes:
        asked: Start of the request, in seconds of the monotonic clock.
        pieces: Arrival of each piece of text.
    """

    asked: float = field(default_factory=time.monotonic)
    pieces: list[float] = field(default_factory=list)

    @property
    def first_piece_seconds(self) -> float | None:
        """Time from the request to the first text; None when there was none."""
        return self.pieces[0] - self.asked if self.pieces else None


async def stream_reply(base_url: str, api_key: str, model: str, times: SampleTimes) -> AsyncIterator[str]:
    """Ask the front for a streamed reply and yield its text as it comes.

    Args:
        base_url: OpenAI base URL of the front.
        api_key: Key of the user who asks.
        model: Model to ask.
        times: Learns when the pieces came.

    Raises:
        StartError: The front refused, the stream ended in an error, or the connection failed.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": SAMPLE_QUESTION}],
        "max_tokens": _MAX_TOKENS,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {api_key}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.post(f"{base_url}/chat/completions", json=body, headers=headers) as response,
        ):
            if response.status != 200:  # noqa: PLR2004 - HTTP's OK
                raise StartError(
                    f"The sample request was refused with {response.status}: {await _message_of(response)}"
                )
            async for line in response.content:
                if text := _text_of(line):
                    times.pieces.append(time.monotonic())
                    yield text
    except (aiohttp.ClientError, TimeoutError) as error:
        raise StartError(f"The sample request failed: {str(error) or type(error).__name__}.") from error


async def _message_of(response: aiohttp.ClientResponse) -> str:
    try:
        return str(orjson.loads(await response.read())["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return "no reason was given."


def _text_of(line: bytes) -> str:
    """Return the text that one line of the stream adds to the reply."""
    data = line.removeprefix(_DATA).strip()
    if not line.startswith(_DATA) or data == b"[DONE]":
        return ""
    event = orjson.loads(data)
    if "error" in event:
        raise StartError(f"The sample reply ended in an error: {event['error'].get('message')}")
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
