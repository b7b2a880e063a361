"""Whose address a request counts under (decision U42)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.client_address import ClientAddresses

BEHIND_PROXIES = ClientAddresses(["10.0.0.0/8", "fd00::/8", "192.0.2.7"])


@pytest.mark.parametrize("peer", ["203.0.113.9", "192.0.2.8", "2001:db8::1"])
def test_a_peer_that_is_no_trusted_proxy_is_the_client_whatever_it_claims(peer: str) -> None:
    assert BEHIND_PROXIES.read(peer, "198.51.100.1") == peer
    assert ClientAddresses([]).read("10.0.0.1", "198.51.100.1") == "10.0.0.1"


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("6.6.6.6, 198.51.100.1", "198.51.100.1"),
        ("198.51.100.1, 10.1.1.1, 192.0.2.7", "198.51.100.1"),
        ("6.6.6.6, 198.51.100.1, fd00::5", "198.51.100.1"),
        ("198.51.100.1:4711, 10.0.0.9:80", "198.51.100.1"),
        ('"[2001:db8::9]:4711", 10.0.0.9', "2001:db8::9"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("  198.51.100.1  ", "198.51.100.1"),
        ("10.2.2.2, 10.1.1.1", "10.2.2.2"),
    ],
)
def test_behind_proxies_the_right_most_address_that_is_none_of_them_is_the_client(forwarded: str, client: str) -> None:
    assert BEHIND_PROXIES.read("10.0.0.1", forwarded) == client


@pytest.mark.parametrize("forwarded", ["", "unknown", "198.51.100.1, _hidden", "198.51.100.1, ,", "999.1.1.1"])
def test_an_entry_that_is_no_address_ends_what_is_believed(forwarded: str) -> None:
    assert BEHIND_PROXIES.read("10.0.0.1", forwarded) == "10.0.0.1"


def test_a_mapped_peer_is_its_ipv4_address() -> None:
    assert BEHIND_PROXIES.read("::ffff:10.0.0.1", "198.51.100.1") == "198.51.100.1"


def test_a_connection_without_an_address_has_a_name_all_the_same() -> None:
    assert BEHIND_PROXIES.read(None, "198.51.100.1") == "unknown"
    assert BEHIND_PROXIES.read("/run/front.sock", "198.51.100.1") == "/run/front.sock"


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_ipv6_address_counts_as_its_site(address: str, source: str) -> None:
    assert ClientAddresses.source(address) == source


@given(
    st.none() | st.text() | st.ip_addresses().map(str), st.text() | st.lists(st.ip_addresses().map(str)).map(", ".join)
)
def test_no_header_whatever_fails_or_makes_up_an_address(peer: str | None, forwarded: str) -> None:
    address = BEHIND_PROXIES.read(peer, forwarded)
    assert address
    assert ClientAddresses.source(address)
