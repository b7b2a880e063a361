"""Free TCP ports for programs that cannot inherit a socket."""

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["LOOPBACK", "reserved_port"]

LOOPBACK = "127.0.0.1"
"""Everything that ``horde up`` starts listens here and nowhere else."""


@contextlib.contextmanager
def reserved_port(port: int = 0) -> Iterator[int]:
    """Keep a port from being handed to anyone else while a program starts to listen on it.

    The socket is bound and does not listen: a program that sets ``SO_REUSEADDR``, as PostgreSQL and Valkey do, may
    bind beside it, and the kernel gives the port to nobody who asks for a free one.

    Args:
        port: The port; 0 takes a free one.

    Raises:
        OSError: Another program has the port.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
        yield int(holder.getsockname()[1])
