"""An ASGI application on a real socket, in the test's own event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import ASGIApp

from horde.server import ServeOptions, bind_socket, serve

__all__ = ["Served", "serving"]


@dataclass(frozen=True, slots=True)
class Served[Server]:
    """A scripted server and the address it is reached at."""

    server: Server
    url: str


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, *, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on the loopback address and yield its base URL.

    Args:
        app: The application.
        port: TCP port; 0 takes a free one.
    """
    listener = bind_socket("127.0.0.1", port)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stopping = asyncio.Event()
    options = ServeOptions(drain_seconds=1.0, keepalive_seconds=30)
    listener.listen()
    server = asyncio.create_task(serve(app, listener, stopping=stopping, options=options), name="test - server")
    try:
        yield url
    finally:
        stopping.set()
        await server
