"""Server-sent events, or one JSON text a line, as they arrive: bytes cut anywhere in, whole texts out. Pure."""

__all__ = ["EventStreamError", "EventStreamParser", "LineStreamParser"]

_MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Bound of one event: a model server sends tokens, and one that sends more in one piece is broken."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventStreamError(Exception):
    """An event is larger than any model server has reason to send."""


class EventStreamParser:
    """Cuts a byte stream into events, by the rules of the HTML standard.

    Lines end with LF, CR or CRLF; a line that starts with a colon is a comment; only ``data`` fields count here, and
    an event that has none is none. An event that the end of the stream cuts off is dropped, as the standard says.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_return = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes and return the data of the events that they complete, in order.

        Raises:
            EventStreamError: One event passes 4 MiB.
        """
        if self._after_return and chunk:
            # The LF of a CRLF whose CR ended the last chunk.
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        self._line += chunk
        if len(self._line) + self._data_bytes > _MAX_EVENT_BYTES + len(chunk):
            raise EventStreamError("The model server sent an event of more than 4 MiB.")
        if b"\n" not in chunk and b"\r" not in chunk:
            return []
        *lines, rest = self._split()
        self._line = bytearray(rest)
        return [event for line in lines if (event := self._take_line(line)) is not None]

    def _split(self) -> list[bytes]:
        buffered = bytes(self._line)
        self._after_return = buffered.endswith(b"\r")
        return buffered.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    def _take_line(self, line: bytes) -> bytes | None:
        """Take one whole line; return the event's data when the line ends one."""
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value)
        return None

    def _end_event(self) -> bytes | None:
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data = []
        self._data_bytes = 0
        return event


class LineStreamParser:
    """Cuts a byte stream into lines, one JSON text each; empty lines are none, and a last line needs its end."""

    def __init__(self) -> None:
        self._line = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes and return the lines that they complete, in order.

        Raises:
            EventStreamError: One line passes 4 MiB.
        """
        self._line += chunk
        if len(self._line) > _MAX_EVENT_BYTES + len(chunk):
            raise EventStreamError("The model server sent a line of more than 4 MiB.")
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest)
        return [line for line in lines if line.strip()]
