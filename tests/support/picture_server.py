"""A web server that pictures are fetched from, on the loopback address; it counts what it was asked for."""

import asyncio
import contextlib
import io
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.types import Receive, Scope, Send

from tests.support.serving import serving

__all__ = ["PictureServer", "encode_picture", "image_message", "serving_pictures", "stored_pictures"]


def encode_picture(size: tuple[int, int] = (8, 8), colour: Any = "red", kind: str = "PNG", **options: Any) -> bytes:
    """Return a picture of one colour.

    Args:
        size: Width and height, pixels.
        colour: The colour, as Pillow reads it for the mode.
        kind: The format.
        **options: ``mode`` of the picture (RGB), and what the format's encoder takes.
    """
    mode = str(options.pop("mode", "RGB"))
    encoded = io.BytesIO()
    Image.new(mode, size, colour).save(encoded, kind, **options)
    return encoded.getvalue()


def image_message(*urls: str, text: str = "What is this?") -> dict[str, Any]:
    """Return a user message that asks something about pictures."""
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


def stored_pictures(folder: Path) -> list[Path]:
    """Return the files in the folder of a Horde's pictures."""
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


@dataclass(slots=True)
class PictureServer:
    """Answers with what a test laid down; an unknown path is 404.

    Attributes:
        base_url: Its address, without a path.
        pages: Status, headers and body by path.
        asked: How often each path was asked for.
        headers: The headers of the last request.
        held: Set while answers may go out; a test that clears it holds them back.
        endless: Paths whose body never ends; a megabyte a chunk.
        sent: Chunks of endless bodies that went out.
        running: Requests being answered.
        most_running: The most there were at a time.
    """

    base_url: str = ""
    pages: dict[str, tuple[int, Mapping[str, str], bytes]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    headers: dict[str, str] = field(default_factory=dict)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    endless: set[str] = field(default_factory=set)
    sent: int = 0
    running: int = 0
    most_running: int = 0

    def lay(self, path: str, body: bytes = b"", status: int = 200, **headers: str) -> str:
        """Lay down an answer and return its URL; underscores in header names stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages[path] = (status, named, encode_picture() if status == 200 and not body else body)
        return self.base_url + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self._answer(scope, receive, send)
        finally:
            self.running -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked[path] += 1
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        await self.held.wait()
        if path in self.endless:
            await self._send_endlessly(receive, send)
            return
        status, headers, body = self.pages.get(path, (404, {}, b"nothing"))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    async def _send_endlessly(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(_left(receive), name="test - leaving client")
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 1024 * 1024, "more_body": True})
            self.sent += 1
            # A send does not wait while the client reads, nor once it has left: others get their turn here.
            await asyncio.wait({leaving}, timeout=0)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def serving_pictures() -> AsyncIterator[PictureServer]:
    """Serve pictures until the context ends."""
    server = PictureServer()
    server.held.set()
    async with serving(server) as url:
        server.base_url = url
        try:
            yield server
        finally:
            server.held.set()
