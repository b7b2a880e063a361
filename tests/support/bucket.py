"""An S3-compatible bucket on the loopback address: objects in memory, signed calls alone."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.support.serving import serving

__all__ = ["Bucket", "serving_bucket"]

_KEY = re.compile("<Key>(.*?)</Key>")
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>It does not exist.</Message></Error>"


@dataclass(slots=True)
class Bucket:
    """Keeps what is put, and refuses what is not signed in the header or in the query.

    Attributes:
        url: Its address.
        objects: Bytes by path, the bucket's name included.
        lent: Seconds that each signed URL was good for, as it was used.
        held: Set while it answers.
        failing: Whether it answers 403, as for a key that was revoked.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    lent: list[int] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    failing: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call."""
        if scope["type"] == "http":
            request = Request(scope, receive)
            body = await request.body()
            await self.held.wait()
            await self._answer(request, body)(scope, receive, send)

    def _answer(self, request: Request, body: bytes) -> Response:
        query = request.query_params
        if "X-Amz-Signature" in query:
            self.lent.append(int(query["X-Amz-Expires"]))
        elif not request.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 "):
            return Response(status_code=401)
        if self.failing:
            return Response(b"<Error><Code>InvalidAccessKeyId</Code></Error>", 403)
        path = request.url.path
        if request.method == "PUT":
            self.objects[path] = body
            return Response(headers={"ETag": '"1"'})
        if request.method == "POST" and "delete" in query:
            keys = _KEY.findall(body.decode())
            for key in keys:
                self.objects.pop(f"{path}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return Response(f"<DeleteResult>{deleted}</DeleteResult>", media_type="application/xml")
        if request.method == "GET" and path in self.objects:
            headers = {"ETag": '"1"', "Last-Modified": "Mon, 07 Dec 2026 00:00:00 GMT"}
            return Response(self.objects[path], headers=headers, media_type="image/jpeg")
        return Response(_MISSING, 404, media_type="application/xml")


@contextlib.asynccontextmanager
async def serving_bucket() -> AsyncIterator[Bucket]:
    """Serve a bucket until the context ends."""
    bucket = Bucket()
    bucket.held.set()
    async with serving(bucket) as url:
        bucket.url = url
        try:
            yield bucket
        finally:
            bucket.held.set()
