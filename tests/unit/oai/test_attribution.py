import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horde.oai.attribution import build_client_agent
from horde.oai.version import FRONT_VERSION


def application(**headers: str) -> str:
    """The application of the agent that these headers make, their names with dashes."""
    agent = build_client_agent({name.replace("_", "-"): value for name, value in headers.items()})
    return agent.partition(f":{FRONT_VERSION}:")[0]


@pytest.mark.rule("ATT-1", "ATT-3")
def test_the_agent_is_application_version_and_user_agent() -> None:
    headers = {"x-title": "My app", "user-agent": "OpenAI/Python 3.57"}
    assert build_client_agent(headers) == f"My app:{FRONT_VERSION}:OpenAI/Python 3.57 via horde-oai-front"


@pytest.mark.rule("ATT-2")
def test_the_first_header_that_names_an_application_counts() -> None:
    named = {
        "x_title": "First",
        "x_openrouter_title": "Second",
        "http_referer": "https://third.example/chat?key=1",
        "referer": "http://fourth.example:8000",
    }
    expected = ["First", "Second", "third.example", "fourth.example", "unknown"]
    for name in expected:
        assert application(**named) == name
        if named:
            del named[next(iter(named))]


@pytest.mark.rule("ATT-2")
@pytest.mark.parametrize("title", ["", "   ", "\t", ":::"])
def test_a_title_of_nothing_is_passed_over(title: str) -> None:
    assert application(x_title=title, referer="https://site.example") == "site.example"


@pytest.mark.rule("ATT-2")
@pytest.mark.parametrize("url", ["", "no url", "/path", "https://", "http://[::1", "mailto:a@b", "https:///path"])
def test_an_address_without_a_host_names_nothing(url: str) -> None:
    assert application(http_referer=url, referer=url) == "unknown"


def test_user_information_and_path_of_an_address_are_not_passed_on() -> None:
    assert application(referer="https://user:secret@Site.Example:8443/private?token=1#x") == "site.example"


@pytest.mark.rule("ATT-1")
@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("A:B", "A B"),
        ("A\r\nB: C", "A B C"),
        ("A\x00\x1f\x85B", "A B"),
        ("  A   B  ", "A B"),
        ("猫", "\\u732b"),
        ("Café", "Caf\\xe9"),
        ("x" * 200, "x" * 128),
        ("x" * 127 + " y", "x" * 127),
    ],
)
def test_a_title_is_one_plain_part_of_a_header(title: str, name: str) -> None:
    assert application(x_title=title) == name


def test_a_user_agent_keeps_its_colons_and_loses_what_ends_a_line() -> None:
    agent = build_client_agent({"user-agent": "curl/8 (a: b)\r\nX-Evil: 1"})
    assert agent == f"unknown:{FRONT_VERSION}:curl/8 (a: b) X-Evil: 1 via horde-oai-front"
    assert build_client_agent({}) == f"unknown:{FRONT_VERSION}:unknown via horde-oai-front"


@pytest.mark.rule("ATT-1")
@given(st.text(), st.text(), st.text())
def test_whatever_a_client_sends_is_one_line_of_ascii_in_three_parts(title: str, referer: str, user_agent: str) -> None:
    headers = {"x-title": title, "referer": referer, "user-agent": user_agent}
    agent = build_client_agent(headers)
    assert re.fullmatch(r"[ -9;-~]{1,128}:[0-9][^:]*:[ -~]{1,128} via horde-oai-front", agent)
