"""The ``Client-Agent`` by which the Horde attributes traffic (rules ATT, decision U49)."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from horde.oai.version import FRONT_VERSION

__all__ = ["build_client_agent"]

_MAX_PART_CHARACTERS: Final = 128
_UNKNOWN: Final = "unknown"
_NOT_PLAIN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def _clean(value: str, *, colons: bool) -> str:
    plain = _NOT_PLAIN.sub(" ", value)
    if not colons:
        plain = plain.replace(":", " ")
    # A header is ASCII on the wire; what is not is escaped rather than lost.
    plain = plain.encode("ascii", "backslashreplace").decode()
    return " ".join(plain.split())[:_MAX_PART_CHARACTERS].rstrip()


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def build_client_agent(headers: Mapping[str, str]) -> str:
    """Return ``<application>:<version>:<user agent> via horde-oai-front`` (ATT-1).

    Args:
        headers: The client's headers, names in lower case.
    """
    candidates = (
        headers.get("x-title", ""),
        headers.get("x-openrouter-title", ""),
        _host(headers.get("http-referer", "")),
        _host(headers.get("referer", "")),
    )
    application = next((name for candidate in candidates if (name := _clean(candidate, colons=False))), _UNKNOWN)
    user_agent = _clean(headers.get("user-agent", ""), colons=True) or _UNKNOWN
    return f"{application}:{FRONT_VERSION}:{user_agent} via horde-oai-front"
