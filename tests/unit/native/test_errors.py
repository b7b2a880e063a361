from http import HTTPStatus
from pathlib import Path

import orjson
import pytest

from horde.chat_contract import VALIDATION_FAILED_MESSAGE
from horde.native.errors import (
    FAULT_CODES,
    RETURN_CODES,
    OutcomeUnknownError,
    RefusalError,
    ReturnCode,
    ValidationFailedError,
    encode_refusal,
    render_return_codes,
)


def test_the_page_of_return_codes_is_current() -> None:
    page = Path(__file__).parents[3] / "README_return_codes.md"
    assert page.read_text() == render_return_codes()


@pytest.mark.parametrize("code", list(ReturnCode))
def test_every_code_has_a_row_and_a_place(code: ReturnCode) -> None:
    entry = RETURN_CODES[code]
    assert entry.meaning.endswith(".")
    assert entry.status is not None or code in FAULT_CODES


@pytest.mark.rule("NAT-2")
def test_a_refusal_is_a_message_and_a_code_and_a_failed_validation_has_no_code() -> None:
    refusal = RefusalError(ReturnCode.INVALID_API_KEY)
    assert (refusal.status, refusal.body()) == (401, {"message": "No user has this API key.", "rc": "InvalidAPIKey"})
    failed = ValidationFailedError({"max_length": "too small"})
    assert failed.status == 400
    assert failed.body() == {"message": VALIDATION_FAILED_MESSAGE, "errors": {"max_length": "too small"}}


def test_an_unknown_outcome_claims_nothing() -> None:
    assert OutcomeUnknownError().status == 503
    assert "rc" not in OutcomeUnknownError().body()


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "BadRequest"), (408, "BodyReadTimeout"), (414, "RequestTooLarge"), (431, "RequestTooLarge")],
)
def test_what_the_server_refuses_by_itself_has_a_code_too(status: int, code: str) -> None:
    headers, body = encode_refusal(HTTPStatus(status), "Why.")
    assert (list(headers), orjson.loads(body)) == ([], {"message": "Why.", "rc": code})
