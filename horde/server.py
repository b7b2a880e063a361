"""How a part listens, serves and stops: shared by the front and the native Horde (decision U44).

uvicorn tells an application of a shutdown only after the last response ended, and closes its listeners at once. A
balancer needs the reverse: the application learns of the signal first and reports itself unready while new requests
are still taken, then the listeners close, then what runs is given time.
"""

import asyncio
import contextlib
import errno
import gc
import math
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp

from horde.http_protocol import BoundedHttpProtocol, ConnectionLimits, EncodeRefusal, encode_plain_refusal

__all__ = ["ListenError", "ServeOptions", "bind_socket", "run_event_loop", "serve"]

_BACKLOG = 2048
"""Connections the kernel holds before the loop accepts them; a burst of clients must not be refused."""

_DRAIN_MARGIN_SECONDS = 1
"""Between the end of the application's own drain and the server's: what it answers last still goes out."""

_PROBES: Final = 4
"""Questions without an answer after which a client's machine counts as gone."""

_YOUNG_OBJECTS: Final = 10_000
"""New containers after which Python looks for cycles among them: a request makes some hundred, nearly all of which are
freed without that. Its own 2,000 makes a busy server look through everything that waits dozens of times a second."""


class ListenError(Exception):
    """The address cannot be listened on; the message is one sentence for the person who started the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How long a server takes to stop, and what it lets a connection hold.

    Attributes:
        accept_seconds: Time after the signal in which new connections are still taken, so that a balancer sees
            ``/readyz`` fail before connections are refused.
        drain_seconds: Time that running requests have after the listeners closed; their tasks are cancelled when an
            application did not end them by itself a second later at the earliest, two at the latest.
        keepalive_seconds: How long an idle kept-alive connection stays open.
        unread_seconds: How long a client may leave sent data unacknowledged, or its window shut, before the kernel
            ends the connection, whatever the application does; the system's default (minutes to for ever) when None.
            Linux only.
        send_buffer_bytes: Size of the kernel's send buffer of a connection, which the kernel doubles for its own
            accounting; the system's default, which grows to megabytes, when None.
        probe_seconds: Silence after which the kernel asks whether the client's machine is still there, and the time it
            has to answer; None leaves it at the system's two hours, or never. Linux only.
        limits: What a client may take before its request has a route.
        encode_refusal: Writes the answer to a request refused by those.
        own_files: Open files that the application needs for itself; connections get the rest of the process's limit,
            and half of it at least.
    """

    accept_seconds: float = 0.0
    drain_seconds: float = 20.0
    keepalive_seconds: int = 75
    unread_seconds: float | None = None
    send_buffer_bytes: int | None = None
    probe_seconds: int | None = 20
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    encode_refusal: EncodeRefusal = encode_plain_refusal
    own_files: int = 128


def bind_socket(host: str, port: int, *, file_descriptor: int | None = None) -> socket.socket:
    """Return a listening-ready socket: inherited when a descriptor is given, else bound to ``host``:``port``.

    A parent that binds the socket and hands its descriptor down knows the port before the child runs, and a port in
    use is its error to report, without a race.

    Args:
        host: Address to bind, IPv4 or IPv6.
        port: TCP port; 0 takes a free one.
        file_descriptor: An inherited, bound socket to use instead.

    Raises:
        ListenError: The port is in use, not permitted, or the address is not one of this machine.
    """
    if file_descriptor is not None:
        return socket.socket(fileno=file_descriptor)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio turns Nagle's delay off only for sockets that say they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ListenError(_listen_sentence(host, port, error)) from error
    listener.set_inheritable(True)
    return listener


def _listen_sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use by another program; stop it or choose another port (0 takes a free one)."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} on {host} needs more rights than this user has; choose a port from 1024 up."
    return f"Cannot listen on {host} port {port}: {os.strerror(error.errno) if error.errno else error}."


class _Server(uvicorn.Server):
    """A uvicorn server that reports the signal when it comes and keeps accepting for a while."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event, accept_seconds: float) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._accept_seconds = accept_seconds
        self._loop = asyncio.get_running_loop()
        self._forced = asyncio.Event()
        self._signal_count = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Tell the application at once; a second signal of any kind stops waiting for what runs.

        Signals are counted: a drain that the application began by itself is not cut short by the first. uvicorn's own
        handling is left out, which raises the signal again at the end: a clean drain is a success.
        """
        self._signal_count += 1
        self._loop.call_soon_threadsafe(self._stopping.set)
        if self._signal_count > 1:
            self.force_exit = True
            self._loop.call_soon_threadsafe(self._forced.set)
        self.should_exit = True

    async def main_loop(self) -> None:
        """Serve until told to stop, then for the accept time."""
        await super().main_loop()
        self._stopping.set()
        if self._accept_seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._forced.wait(), self._accept_seconds)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners and wait for what runs; when forced, cut its connections off.

        uvicorn alone would go on waiting: a listener counts as closed when its connections are. And it would have the
        kernel reset the connections that wait to be accepted, whose clients may have sent their requests already.
        """
        cutter = asyncio.create_task(self._cut_off_when_forced(), name="server - forced stop")
        last = [
            asyncio.create_task(self._serve_last(connection), name="server - last connection")
            for listener in sockets or ()
            for connection in _waiting_connections(listener)
        ]
        try:
            await super().shutdown(sockets)
        finally:
            for task in (cutter, *last):
                task.cancel()

    async def _serve_last(self, connection: socket.socket) -> None:
        """Serve one request of a connection that was accepted as the listener closed."""
        config, state = self.config, self.server_state
        protocol_class = cast("Callable[..., BoundedHttpProtocol]", config.http_protocol_class)
        _, protocol = await self._loop.connect_accepted_socket(
            lambda: protocol_class(config=config, server_state=state, app_state=self.lifespan.state), connection
        )
        protocol.shutdown()

    async def _cut_off_when_forced(self) -> None:
        await self._forced.wait()
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _waiting_connections(listener: socket.socket) -> list[socket.socket]:
    """Accept what waits to be accepted, without blocking."""
    connections = []
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            connections.append(connection)
    return connections


def _limit_connections(listener: socket.socket, options: ServeOptions) -> None:
    """Bound what a connection may hold: those made from now on inherit it from the listening socket."""
    if options.send_buffer_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
    if options.unread_seconds is not None and sys.platform == "linux":
        milliseconds = max(1, round(options.unread_seconds * 1000))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    if options.probe_seconds is not None and sys.platform == "linux":
        # A client whose machine vanished sends no end. One that waits for a whole reply is written nothing meanwhile,
        # so the time for unacknowledged data alone would not notice.
        interval = max(1, options.probe_seconds // _PROBES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.probe_seconds)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _raise_open_files() -> int | None:
    """Raise the process's limit of open files as far as it may, and return it; None where there is none.

    The usual soft limit of 1,024 is there for programs that use ``select``.
    """
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in {resource.RLIM_INFINITY, hard}:
        # macOS refuses more than its own maximum even where the hard limit is unlimited.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def _connection_limits(options: ServeOptions) -> ConnectionLimits:
    """Return the limits, connections bounded: with every file taken by clients, none would be left to serve them."""
    open_files = _raise_open_files()
    if options.limits.max_connections is not None or open_files is None:
        return options.limits
    return replace(options.limits, max_connections=max(open_files - options.own_files, open_files // 2))


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stopping: asyncio.Event,
    options: ServeOptions = ServeOptions(),
) -> None:
    """Serve an application on one socket until SIGINT or SIGTERM, then drain.

    Args:
        app: The ASGI application, with a lifespan.
        listener: A bound socket, from :func:`bind_socket`; closed on return.
        stopping: Set at the signal, or by the caller to end the server; shared with the application, which turns
            unready and ends its streams by it.
        options: Times of the shutdown and bounds of a connection.

    Raises:
        SystemExit: The application's lifespan failed to start (uvicorn's status 3).
    """
    _limit_connections(listener, options)
    limits = _connection_limits(options)
    protocol = partial(BoundedHttpProtocol, limits=limits, encode_refusal=options.encode_refusal)
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        # By default uvicorn believes what any peer on this machine says about whose request it is.
        proxy_headers=False,
        timeout_keep_alive=options.keepalive_seconds,
        timeout_graceful_shutdown=math.ceil(options.drain_seconds) + _DRAIN_MARGIN_SECONDS,
    )
    server = _Server(config, stopping, options.accept_seconds)

    async def stop_when_told() -> None:
        await stopping.wait()
        server.should_exit = True

    watcher = asyncio.create_task(stop_when_told(), name="server - stop watcher")
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()


def _calm_collector() -> None:
    """Keep the garbage collector from stopping every request at once.

    What the imports made lives as long as the process. Left to the collector, it looks through these hundreds of
    thousands of objects again and again, for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def run_event_loop(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a program's main coroutine on uvloop where it exists and return its exit code.

    To be called when everything is imported.
    """
    _calm_collector()
    if sys.platform == "win32":
        return asyncio.run(main())
    import uvloop  # noqa: PLC0415 - has no wheel for Windows

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
