"""Whose request it is, by address (decision U42)."""

import ipaddress
from collections.abc import Sequence
from typing import Final

__all__ = ["ClientAddresses"]

_UNKNOWN: Final = "unknown"
_IPV6_SITE_BITS: Final = 64
_MAX_FORWARDED: Final = 32

type _Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ClientAddresses:
    """Reads the client's address: the peer, or behind trusted proxies the right-most entry that is none of them.

    Args:
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` is believed.
    """

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted = tuple(ipaddress.ip_network(network, strict=False) for network in trusted_proxies)

    def read(self, peer: str | None, forwarded_for: str) -> str:
        """Return the client's address as text.

        Args:
            peer: Address of the connection, None on a socket without one.
            forwarded_for: The ``X-Forwarded-For`` header, empty when there is none.
        """
        address = _parse(peer or "")
        if address is None:
            return peer or _UNKNOWN
        if not self._is_trusted(address):
            return str(address)
        for entry in reversed(forwarded_for.split(",")[-_MAX_FORWARDED:]):
            forwarded = _parse(entry)
            if forwarded is None:
                break
            address = forwarded
            if not self._is_trusted(address):
                break
        return str(address)

    def _is_trusted(self, address: _Address) -> bool:
        return any(address in network for network in self._trusted)

    @staticmethod
    def source(address: str) -> str:
        """Return what an address counts as: itself, or the /64 of an IPv6 one, which is one customer's."""
        parsed = _parse(address)
        if isinstance(parsed, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((parsed, _IPV6_SITE_BITS), strict=False))
        return address


def _parse(text: str) -> _Address | None:
    plain = text.strip().strip('"')
    if plain.startswith("["):
        plain = plain[1:].partition("]")[0]
    elif plain.count(":") == 1:
        plain = plain.partition(":")[0]
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
