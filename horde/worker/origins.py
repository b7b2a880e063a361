"""Where a URL leads to. Pure."""

from typing import Final
from urllib.parse import urlsplit

__all__ = ["origin_of"]

_PORTS: Final = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, in one spelling.

    Raises:
        ValueError: It has none, or is none of HTTP.
    """
    address = urlsplit(url)
    if address.scheme not in _PORTS or not address.hostname:
        raise ValueError("an origin starts with http:// or https:// and names a host")
    host = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    return f"{address.scheme}://{host}:{address.port or _PORTS[address.scheme]}"
