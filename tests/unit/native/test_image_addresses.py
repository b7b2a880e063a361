"""Which addresses pictures may be fetched from (IMG-5); every other test of a refused address rests on these."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from horde.native.images.addresses import is_public, may_connect

INSIDE = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/29",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
]
"""IANA's registry of special addresses, and the one of a cloud's metadata service that is none of them."""

INSIDE_6 = [
    IPv6Network(network)
    for network in (
        "::/128",
        "::1/128",
        "::ffff:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/32",
        "2001:2::/48",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
]


def _any_of(networks: list[IPv4Network]) -> st.SearchStrategy[IPv4Address]:
    def within(network: IPv4Network) -> st.SearchStrategy[IPv4Address]:
        return st.integers(int(network[0]), int(network[-1])).map(IPv4Address)

    return st.sampled_from(networks).flatmap(within)


def _carriers(address: IPv4Address) -> list[IPv6Address]:
    """Return the IPv6 addresses that stand for an IPv4 address, by one mechanism each."""
    number = int(address)
    prefixes = ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::")
    plain = [IPv6Address(int(IPv6Address(prefix)) | number) for prefix in prefixes]
    six_to_four = IPv6Address(int(IPv6Address("2002::")) | number << 80)
    teredo = IPv6Address(int(IPv6Address("2001::")) | number ^ 0xFFFFFFFF)
    return [*plain, six_to_four, teredo]


@pytest.mark.rule("IMG-5")
@given(_any_of(INSIDE), st.sampled_from([80, 443, 8080]))
def test_no_address_inside_is_connected_to_in_either_protocol(address: IPv4Address, port: int) -> None:
    assert not may_connect(str(address), port, ())
    for carrier in _carriers(address):
        assert not may_connect(str(carrier), port, ())
        assert not may_connect(carrier.exploded, port, ())


@pytest.mark.rule("IMG-5")
@given(st.ip_addresses(v=4))
@example(IPv4Address("8.8.8.8"))
def test_an_address_is_public_unless_a_registry_names_it_and_never_inside_another(address: IPv4Address) -> None:
    if is_public(address):
        assert not any(address in network for network in INSIDE)
    assert not any(is_public(carrier) for carrier in _carriers(address))


@pytest.mark.rule("IMG-5")
@given(st.one_of(st.ip_addresses(v=6), *[st.ip_addresses(network=network) for network in INSIDE_6]))
def test_only_global_unicast_is_reached_in_ipv6(address: IPv6Address) -> None:
    if is_public(address):
        assert address in IPv6Network("2000::/3")
        assert not any(address in network for network in INSIDE_6)
        assert address.ipv4_mapped is None
        assert address.sixtofour is None
        assert address.teredo is None


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:830::200e"])
def test_public_addresses_are_reached_on_web_ports_and_free_ones(address: str) -> None:
    assert is_public(ip_address(address))
    reached = [port for port in (22, 25, 53, 80, 443, 465, 993, 1024, 8080, 65535) if may_connect(address, port, ())]
    assert reached == [80, 443, 1024, 8080, 65535]


@pytest.mark.rule("IMG-5")
@pytest.mark.parametrize("host", ["fe80::1%eth0", "2606:4700:4700::1111%1", "example.com", "0x7f.1", "127.1", "", "::"])
def test_what_is_no_plain_address_is_never_connected_to(host: str) -> None:
    assert not may_connect(host, 80, ())


def test_a_network_of_the_operator_is_reached_on_every_port_and_opens_nothing_else() -> None:
    allowed = [ip_network("10.1.0.0/16"), ip_network("fd12::/16")]
    assert may_connect("10.1.2.3", 22, allowed)
    assert may_connect("fd12::5", 9000, allowed)
    assert not may_connect("10.2.0.1", 80, allowed)
    assert not may_connect("::ffff:10.1.2.3", 80, allowed)
