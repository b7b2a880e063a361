"""How deep a JSON text nests, measured at the speed of C and without recursion.

A walk over the parsed values costs several times the parsing. Here strings are cut out, and everything but brackets with
them, and each round removes the innermost pairs: as many rounds as there are levels.
"""

from typing import Final

__all__ = ["exceeds_depth"]

_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def exceeds_depth(data: bytes, levels: int) -> bool:
    """Return whether a JSON text nests more than a number of levels.

    Args:
        data: Valid JSON; what is no JSON gets some answer, never an exception.
        levels: Objects and arrays inside one another that are allowed.
    """
    if data.count(b"{") + data.count(b"[") <= levels:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escapes every second part between quotes is outside of a string.
    brackets = b"".join(data.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        # Both kinds of innermost pair lose their level in the same round.
        brackets = brackets.replace(b"[]", b".").replace(b"{}", b".").replace(b".", b"")
    return bool(brackets)
