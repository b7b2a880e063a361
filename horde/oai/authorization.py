"""The client's key (rules AUT)."""

from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

from horde.chat_contract import ANONYMOUS_API_KEY
from horde.oai.errors import ChatFrontError, FrontCode

__all__ = ["authorization_values", "read_api_key"]

_MAX_KEY_CHARACTERS: Final = 512


def authorization_values(scope: Scope) -> list[str]:
    """Return every ``Authorization`` header of a request."""
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"authorization"]


def read_api_key(values: Sequence[str]) -> str:
    """Return the API key of a request; the anonymous one when it has no ``Authorization``.

    Args:
        values: Every ``Authorization`` header of the request.

    Raises:
        ChatFrontError: ``InvalidAuthorizationHeader``; the message never holds the header.
    """
    if not values:
        return ANONYMOUS_API_KEY
    scheme, _, rest = values[0].strip().partition(" ")
    key = rest.strip()
    fits = 0 < len(key) <= _MAX_KEY_CHARACTERS and key.isascii() and key.isprintable() and " " not in key
    if len(values) > 1 or scheme.lower() != "bearer" or not fits:
        raise ChatFrontError(
            FrontCode.INVALID_AUTHORIZATION,
            "The Authorization header has to be 'Bearer <key>'. Leave it out to be the anonymous user.",
        )
    return key
