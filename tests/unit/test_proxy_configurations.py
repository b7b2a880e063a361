"""The shipped configurations of HAProxy and nginx agree with the front's defaults; `make test-proxies` runs them."""

import re
from typing import Final

import pytest

from horde.oai.__main__ import serve_options
from horde.oai.settings import FrontSettings
from tests.support.replicas import PROXIES, shipped_configuration

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "": 1, "k": 1024, "M": 2**20}
SETTINGS: Final = FrontSettings.model_construct()
SERVED: Final = serve_options(SETTINGS)


def value(proxy: str, setting: str) -> float:
    """Return the one value of a setting in seconds or bytes.

    Args:
        proxy: ``haproxy`` or ``nginx``.
        setting: What stands before the value, as a regular expression.
    """
    lines = [line.split("#")[0] for line in PROXIES[proxy].read_text(encoding="utf-8").splitlines()]
    found = [match for line in lines if (match := re.search(rf"\b{setting}[ =](\d+)(ms|s|m|k|M|)\b", line))]
    assert len(found) == 1, f"{proxy}: {setting} is there {len(found)} times"
    return float(found[0][1]) * _UNITS[found[0][2]]


@pytest.mark.parametrize(("proxy", "setting"), [("haproxy", "timeout server"), ("nginx", "proxy_read_timeout")])
def test_a_proxy_waits_longer_than_any_silence_of_a_front(proxy: str, setting: str) -> None:
    longest_silence = SETTINGS.submit_timeout_seconds + SETTINGS.nonstream_timeout_seconds
    assert value(proxy, setting) > longest_silence + SETTINGS.cancel_timeout_seconds
    assert value(proxy, setting) > SETTINGS.keepalive_seconds


def test_haproxy_lets_a_client_be_silent_while_its_front_is() -> None:
    assert value("haproxy", "timeout client") >= value("haproxy", "timeout server")


@pytest.mark.parametrize(
    ("proxy", "setting"),
    [("haproxy", "timeout http-request"), ("nginx", "client_header_timeout"), ("nginx", "client_body_timeout")],
)
def test_a_proxy_gives_a_head_and_a_body_the_fronts_time(proxy: str, setting: str) -> None:
    assert value(proxy, setting) == SERVED.limits.head_seconds == SETTINGS.body_read_timeout_seconds


@pytest.mark.parametrize(("proxy", "setting"), [("haproxy", "timeout http-keep-alive"), ("nginx", "keepalive_timeout")])
def test_a_proxy_keeps_an_idle_connection_as_long_as_a_front(proxy: str, setting: str) -> None:
    assert value(proxy, setting) == SERVED.keepalive_seconds


def test_a_head_or_body_a_little_over_the_fronts_bounds_reaches_it_for_its_own_answer() -> None:
    assert value("haproxy", "tune.bufsize") >= SERVED.limits.max_head_bytes + 16 * 1024
    assert value("nginx", r"large_client_header_buffers \d+") > SERVED.limits.max_head_bytes
    assert value("nginx", "client_max_body_size") >= SETTINGS.max_body_bytes * 2


def test_haproxy_sees_a_front_that_drains_before_it_refuses_connections() -> None:
    checks = value("haproxy", "inter") + (value("haproxy", "fall") - 1) * value("haproxy", "fastinter")
    assert checks < SETTINGS.drain_accept_seconds


def test_haproxy_lets_the_longest_stream_end_when_it_is_reloaded() -> None:
    longest = SETTINGS.body_read_timeout_seconds + SETTINGS.submit_timeout_seconds + SETTINGS.stream_timeout_seconds
    assert value("haproxy", "hard-stop-after") > longest


def test_nginx_lets_a_client_leave_its_answer_unread_as_long_as_a_front_does() -> None:
    assert value("nginx", "send_timeout") == SETTINGS.write_timeout_seconds


def test_a_proxy_asks_after_a_silent_client_when_the_front_would() -> None:
    assert SERVED.probe_seconds == value("haproxy", "clitcpka-idle") == value("nginx", "so_keepalive")


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_request_that_was_sent_is_never_sent_again(proxy: str) -> None:
    lines = [line.split("#")[0].split() for line in PROXIES[proxy].read_text(encoding="utf-8").splitlines()]
    if proxy == "haproxy":
        assert [line[1:] for line in lines if line[:1] == ["retry-on"]] == [["conn-failure"]]
    else:
        assert [line[1:] for line in lines if line[:1] == ["proxy_next_upstream"]] == [["error", "timeout;"]]


@pytest.mark.parametrize("proxy", PROXIES)
def test_the_checked_configuration_differs_from_the_shipped_one_in_its_addresses_alone(proxy: str) -> None:
    shipped = PROXIES[proxy].read_text(encoding="utf-8").splitlines()
    checked = shipped_configuration(proxy, 1111, (2222, 3333)).splitlines()
    changed = [line for line, other in zip(shipped, checked, strict=True) if line != other]
    assert changed == [line for line in shipped if re.search(r"\S +# CHANGE", line)]
    assert len(changed) == 3
