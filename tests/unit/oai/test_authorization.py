import pytest

from horde.oai.authorization import authorization_values, read_api_key
from horde.oai.errors import ChatFrontError


@pytest.mark.rule("AUT-2")
def test_without_a_header_the_anonymous_user_asks() -> None:
    assert read_api_key([]) == "0000000000"
    assert read_api_key(["Bearer 0000000000"]) == "0000000000"


@pytest.mark.rule("AUT-1")
@pytest.mark.parametrize("value", ["Bearer k-1", "bearer k-1", "BEARER  k-1", " Bearer   k-1 ", "bEaReR k-1"])
def test_the_scheme_stands_in_any_case_with_one_or_more_spaces(value: str) -> None:
    assert read_api_key([value]) == "k-1"


@pytest.mark.rule("AUT-3", "ERR-10")
@pytest.mark.parametrize(
    "values",
    [
        [""], ["Bearer"], ["Bearer "], ["bearer    "], ["Basic eDp5"], ["k-1"], ["Bearerk-1"], ["Bearer:k-1"],
        ["Bearer\tk-1"], ["Bearer k 1"], ["Bearer k\t1"], ["Bearer k\x7f"], ["Bearer clé"], ["Bearer k\x00"],
        ["Bearer " + "k" * 513], ["Token k-1"], ["Bearer a", "Bearer a"], ["Bearer a", "Basic eDp5"],
    ],
)  # fmt: skip
def test_anything_else_is_a_401_that_does_not_repeat_the_header(values: list[str]) -> None:
    with pytest.raises(ChatFrontError) as caught:
        read_api_key(values)
    error = caught.value
    assert (error.status, error.code, error.param) == (401, "InvalidAuthorizationHeader", None)
    assert "k-1" not in error.message
    assert "eDp5" not in error.message


def test_a_key_of_the_longest_length_is_passed_on() -> None:
    assert read_api_key(["Bearer " + "k" * 512]) == "k" * 512


def test_every_authorization_header_is_seen_whatever_its_case() -> None:
    headers = [(b"authorization", b"Bearer a"), (b"Authorization", b"B\xe9"), (b"apikey", b"x")]
    assert authorization_values({"headers": headers}) == ["Bearer a", "Bé"]
