"""The HTTP/1.1 edge of the front and the native Horde: uvicorn's protocol, with the bounds it lacks (decision 0043).

uvicorn's own reads a head of any size for any time, drops the body of a request that offers an upgrade, stops reading
from a client that pipelines and so does not see it leave, writes a refusal into the middle of a running answer, and
resets the connection of a client that still sends while it is answered. All else is uvicorn's.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["BoundedHttpProtocol", "ConnectionLimits", "EncodeRefusal", "encode_plain_refusal"]

type EncodeRefusal = Callable[[HTTPStatus, str], tuple[Sequence[tuple[bytes, bytes]], bytes]]
"""Returns headers and JSON body for a request refused before any route sees it, by its status and a sentence."""

_MAX_PIPELINED: Final = 16
"""Requests of one read that wait behind the one being answered."""

_LINGER_SECONDS: Final = 2.0
"""How long what a client still sends is read and thrown away after its answer. Closing at once would reset the
connection, and the client would lose the answer that says why."""

_LINE_OVERHEAD: Final = len(b": \r\n")

_MALFORMED: Final = "The request could not be read as HTTP/1.1."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a client may take before its request has a route.

    Attributes:
        max_target_bytes: Longest request target; over it 414.
        max_head_bytes: Target and header lines together; over it 431. Also the most that may come between two parts of
            a body, or as trailers behind it.
        head_seconds: Time from a connection, or from the first byte of a later request, to the end of the headers;
            over it 408. Also the time for the rest of a body whose request was answered before it arrived.
        max_connections: Connections at once; one more is closed as it comes. None is without a bound.
    """

    max_target_bytes: int = 8 * 1024
    max_head_bytes: int = 32 * 1024
    head_seconds: float = 15.0
    max_connections: int | None = None


def encode_plain_refusal(_status: HTTPStatus, sentence: str) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
    """Return a refusal as ``{"message": …}``."""
    return (), orjson.dumps({"message": sentence})


class _RefusedError(Exception):
    """Raised in a parser's callback, which is how a parser is stopped."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class _Reading(Enum):
    """What the next bytes belong to."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection.

    A request is *answering* from when it is whole until its response ends. What comes meanwhile is kept, up to a bound,
    and read after it; reading itself never stops, so that the end of the connection is seen at once.

    Args:
        config: uvicorn's configuration.
        server_state: What uvicorn keeps for all connections.
        app_state: What the application's lifespan made.
        limits: Bounds of a connection.
        encode_refusal: Writes a refusal.
        _loop: uvicorn's.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        encode_refusal: EncodeRefusal,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self._limits = limits
        self._encode_refusal = encode_refusal
        self._reading = _Reading.NOTHING
        self._head_bytes = 0
        """What came since a head began, or since the last part of a body."""
        self._part_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._ahead = bytearray()
        self._upgrade_offered = False
        self._closing = False
        self._is_last = False
        self._timer: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Give a new connection its time to send a head."""
        super().connection_made(transport)
        most = self._limits.max_connections
        if most is not None and len(self.connections) > most:
            self._closing = True
            transport.close()
            return
        self._watch_time()

    def shutdown(self) -> None:
        """Close the connection as the server stops, but serve a request that may be on its way.

        A client that has just connected, or has sent a part of a head, would else lose a request without knowing
        whether it was begun. An idle connection that has had an answer is closed: that is for its client to expect.
        """
        if self._closing or self._is_running() or (self._running is not None and self._reading is not _Reading.HEAD):
            super().shutdown()
            return
        self._is_last = True
        self._stop_timer()
        self._timer = self.loop.call_later(min(_LINGER_SECONDS, self._limits.head_seconds), self._end_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered; uvicorn tells the one that came last."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        self._drop_pipelined()
        if self._running is not None:
            self._disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what belongs to the current request, keep what comes after it."""
        if self._closing:
            return
        if self._is_answering():
            self._keep(data)
            return
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        self._parse(data)
        if self._is_answering():
            self.flow.resume_reading()
        if self._head_bytes > self._limits.max_head_bytes:
            self._refuse(self._oversize())
        self._watch_time()

    def _parse(self, data: bytes) -> None:
        self._part_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._upgrade_offered = False
            self._parse(self._head_without_upgrade() + data[offer.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                cause if isinstance(cause, _RefusedError) else _RefusedError(HTTPStatus.BAD_REQUEST, _MALFORMED)
            )

    def _head_without_upgrade(self) -> bytes:
        """Return the head that was parsed, once more and without its offer: the parser skips the body of an upgrade."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        super().on_message_begin()
        self._reading = _Reading.HEAD
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Start a request whose head is within its bounds; an upgrade that is offered is not taken up."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _RefusedError(HTTPStatus.BAD_REQUEST, _MALFORMED)
            self._upgrade_offered = True
            return
        if len(self.url) > self._limits.max_target_bytes or self._is_head_too_large():
            raise self._oversize()
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "Too many requests were sent ahead.")
        self._complete_target()
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False
        self._reading = _Reading.BODY
        self._head_bytes = 0
        self.headers = []  # The parser hands trailers over as headers: what the request said must not change by them.

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._upgrade_offered:
            return
        super().on_message_complete()
        self._reading = _Reading.NOTHING
        self._head_bytes = 0
        self._stop_timer()

    def _complete_target(self) -> None:
        """Read ``http://host`` as ``http://host/``; a path is there in every other form that is served."""
        if self.url.startswith((b"http://", b"https://")):
            url = httptools.parse_url(self.url)
            path, query = cast("tuple[bytes | None, bytes | None]", (url.path, url.query))
            if path is None:
                self.url = b"/" if query is None else b"/?" + query

    def _is_head_too_large(self) -> bool:
        limit = self._limits.max_head_bytes
        if self._head_bytes + self._part_bytes <= limit:  # So it is for nearly every request.
            return False
        return len(self.url) + sum(len(name) + len(value) + _LINE_OVERHEAD for name, value in self.headers) > limit

    def _oversize(self) -> _RefusedError:
        if len(self.url) > self._limits.max_target_bytes:
            return _RefusedError(
                HTTPStatus.REQUEST_URI_TOO_LONG,
                f"The request URL is over the limit of {self._limits.max_target_bytes} bytes.",
            )
        return _RefusedError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The request's headers are over the limit of {self._limits.max_head_bytes} bytes.",
        )

    # Requests and answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start the application on a request."""
        self._running = cycle
        application = cast("ASGIApp", app)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if cycle.more_body or scope["http_version"] != "1.1":
                send = _PeculiarAnswer(self, cycle, send)
            await application(scope, receive, send)

        super()._start_asgi_task(cycle, cast("ASGI3Application", serve))

    def on_response_complete(self) -> None:
        """Go on with what was sent ahead."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._ahead and not self._is_answering():
            ahead = bytes(self._ahead)
            self._ahead.clear()
            self.data_received(ahead)
        elif self._reading is not _Reading.NOTHING:
            self._watch_time()

    def close_after_reading(self) -> None:
        """Say that nothing more is sent, and throw away what the client sends until it has seen that."""
        self._closing = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self.transport.write_eof()
            self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _is_running(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete and not self._running.more_body

    def _keep(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > HIGH_WATER_LIMIT:
            self._end_after_answer()

    def _end_after_answer(self) -> None:
        """Finish the answer under way, and the connection with it: what was sent ahead cannot be served."""
        self._closing = True
        self._drop_pipelined()
        self._stop_timer()
        if self._running is not None:
            self._running.keep_alive = False

    def _drop_pipelined(self) -> None:
        self.pipeline.clear()
        self._ahead.clear()

    def _refuse(self, refusal: _RefusedError) -> None:
        """Answer in the application's place, unless an answer is under way."""
        if self._closing:
            return
        if self._is_running() and self._running is not None:
            if self._is_answering() or self._running.response_started:
                self._end_after_answer()
                return
            self._disconnect(self._running)
        elif self._reading is _Reading.BODY:  # It has its answer; another would be taken for that of the next request.
            self.close_after_reading()
            return
        headers, body = self._encode_refusal(refusal.status, refusal.sentence)
        head = [STATUS_LINE[refusal.status]]
        head += [b"%s: %s\r\n" % header for header in (*self.server_state.default_headers, *headers)]
        head.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
        head.append(b"connection: close\r\n\r\n")
        self.transport.write(b"".join([*head, body]))
        self.close_after_reading()

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle) -> None:
        if not cycle.response_complete:
            cycle.disconnected = True
        cycle.message_event.set()

    # Time

    def _watch_time(self) -> None:
        """Let the timer run exactly while the client owes us something and gets nothing from us."""
        if self._is_running() or self._closing:
            if not self._closing:
                self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_seconds, self._end_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_time(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._reading is _Reading.HEAD:
            sentence = f"The request's headers were not received within {self._limits.head_seconds:g} seconds."
            self._refuse(_RefusedError(HTTPStatus.REQUEST_TIMEOUT, sentence))
        else:
            self.transport.close()


class _PeculiarAnswer:
    """Sends the answer to a request whose body has not all come, or whose client speaks an older HTTP.

    Args:
        connection: The connection.
        cycle: The request.
        send: uvicorn's channel.
    """

    def __init__(self, connection: BoundedHttpProtocol, cycle: RequestResponseCycle, send: Send) -> None:
        self._connection = connection
        self._cycle = cycle
        self._send = send
        self._until_closed = False

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._prepare(message)
        elif self._until_closed:
            # uvicorn checks a length; there is none, and each part is as long as it is.
            cycle.expected_content_length = len(message.get("body", b""))
        lingers = message["type"] == "http.response.body" and not message.get("more_body", False) and cycle.more_body
        if not lingers or cycle.keep_alive:
            await self._send(message)
            return
        cycle.keep_alive = True  # uvicorn would close the connection now.
        await self._send(message)
        self._connection.close_after_reading()

    def _prepare(self, message: Message) -> None:
        if self._cycle.waiting_for_100_continue:
            # Whether the client sends its body after this answer is its choice, so the next bytes could be anything.
            self._cycle.keep_alive = False
        sized = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
        if self._cycle.scope["http_version"] != "1.1" and not sized:
            # uvicorn sends chunks to HTTP/1.0 too, which does not know them: there the connection's end is the body's.
            self._until_closed = True
            self._cycle.chunked_encoding = False
            self._cycle.keep_alive = False
