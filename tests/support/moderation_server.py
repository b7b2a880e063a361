"""A moderation service on the loopback address, with OpenAI's ``POST /v1/moderations``; it flags a word."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.serving import serving

__all__ = ["ModerationServer", "serving_moderation"]


@dataclass(slots=True)
class ModerationServer:
    """Flags each text with a word in it.

    Attributes:
        url: Its complete address.
        word: What it flags.
        status: Status of its answers.
        headers: Further headers of its answers.
        answer: Body of its answers instead of results, or None.
        seen: The bodies it was sent.
        keys: The ``Authorization`` of each call.
        peers: The client's port of each call.
        free: Set while answers may go out; a test that clears it holds them back.
    """

    url: str = ""
    word: str = "forbidden"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    peers: set[int] = field(default_factory=set)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def moderate(self, request: Request) -> Response:
        """Answer a call."""
        body = orjson.loads(await request.body())
        self.seen.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        assert request.client is not None
        self.peers.add(request.client.port)
        await self.free.wait()
        results = [{"flagged": self.word in text, "categories": {}, "category_scores": {}} for text in body["input"]]
        given = {"id": "modr-1", "model": body.get("model", "default"), "results": results}
        content = self.answer if self.answer is not None else orjson.dumps(given)
        return Response(content, self.status, {"content-type": "application/json", **self.headers})


@contextlib.asynccontextmanager
async def serving_moderation() -> AsyncIterator[ModerationServer]:
    """Serve a moderation service that answers at once."""
    server = ModerationServer()
    server.free.set()
    async with serving(Starlette(routes=[Route("/v1/moderations", server.moderate, methods=["POST"])])) as address:
        server.url = f"{address}/v1/moderations"
        yield server
