"""The baseline of the front's speed: the plainest streaming reverse proxy, with the front's own HTTP libraries.

It reads the request, sends it on and passes on whatever comes back, part by part: no check, no second call.
"""

import asyncio
import socket
import sys

import aiohttp
import uvloop
from aiohttp import web

KEPT_HEADERS = ("content-type", "content-length")


async def serve(upstream: str, descriptor: int) -> None:
    """Forward to ``upstream`` what comes in on an inherited socket, until the process is ended."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def forward(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.read()
            async with session.request(request.method, upstream + request.path_qs, data=body) as answer:
                kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    await response.write(part)
                await response.write_eof()
                return response

        runner = web.ServerRunner(web.Server(forward))
        await runner.setup()
        await web.SockSite(runner, socket.socket(fileno=descriptor), backlog=4096).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
