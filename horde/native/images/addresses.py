"""Which addresses a URL that a client wrote may make the Horde connect to (IMG-5); pure.

Python's ``is_global`` decides for plain addresses: private, loopback, link-local (the metadata services of clouds),
shared (carrier NAT), unspecified and documentation addresses are none. Of IPv6 only the global unicast block is
reached, less what carries an IPv4 address: a gateway on the way may take the inner address for the destination.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["Address", "Network", "is_public", "may_connect"]

type Address = IPv4Address | IPv6Address
type Network = IPv4Network | IPv6Network

_WEB_PORTS: Final = frozenset({80, 443})
_FIRST_FREE_PORT: Final = 1024
"""Below it are the ports of mail, name and shell servers, which no picture is behind."""

_REFUSED: Final[Sequence[Network]] = (
    IPv4Network("168.63.129.16/32"),  # Azure's metadata service: public by its number, inside by where it is
    IPv4Network("192.88.99.0/24"),  # relays of 6to4, which hand on to any address
    IPv6Network("2001::/32"),  # Teredo, which carries an IPv4 address
    IPv6Network("2002::/16"),  # 6to4, likewise
    IPv6Network("3fff::/20"),  # documentation, since 2024 and not in every Python's table
)

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""Outside it are the IPv4-mapped, IPv4-compatible, translated and NAT64 addresses, and all that is local."""


def is_public(address: Address) -> bool:
    """Say whether an address is of the public internet and carries no other address inside."""
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address not in _GLOBAL_UNICAST):
        return False
    if any(address in network for network in _REFUSED if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def may_connect(host: str, port: int, allowed: Iterable[Network]) -> bool:
    """Say whether a connection may be opened: to a public address, or to any of an allowed network.

    Args:
        host: The address itself, never a name.
        port: The port: of a public address one of the web's, or one that needs no privilege.
        allowed: Networks of the operator's that are served although they are not public.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if any(address in network for network in allowed if network.version == address.version):
        return True
    return (port in _WEB_PORTS or port >= _FIRST_FREE_PORT) and is_public(address)
