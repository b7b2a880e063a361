"""The envelope, statuses, codes and retry guidance of every error (ADR 0034)."""

import pytest

from horde.oai.errors import ERROR_TABLE, ChatFrontError, FrontCode, error_type
from horde.oai.horde_client import NativeAnswer
from horde.oai.native_status import Fault, ImpossibleReason
from horde.oai.refusals import refusal_error
from horde.oai.responses import OpenAIError
from horde.oai.schema import ChatCompletionRequest
from horde.oai.wait_answers import wait_error_answer
from horde.oai.wait_errors import (
    DeclarationGapError,
    NoEligibleWorkerError,
    NoGenerationError,
    QueueUnavailableError,
    RequestFaultedError,
    StatusRefusedError,
    StreamDivergedError,
    WaitError,
    WaitTimeoutError,
)

REQUEST_ID = "33333333-3333-4333-8333-333333333333"


def request(**more: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "Hi"}], "model": "a/b"} | more
    )


def refusal(status: int, body: object, **headers: str) -> NativeAnswer:
    return NativeAnswer(
        status, body, {name.replace("_", "-"): value for name, value in headers.items()}, "http://horde"
    )


def answered(error: WaitError, **more: object) -> ChatFrontError:
    return wait_error_answer(error, request(**more), REQUEST_ID, {})


# The envelope


@pytest.mark.rule("ERR-1", "ERR-2", "ERR-3", "ERR-33")
@pytest.mark.parametrize("code", list(FrontCode))
def test_every_code_has_the_four_fields_and_metadata(code: FrontCode) -> None:
    envelope = ChatFrontError(code, "A sentence.").envelope()
    assert set(envelope["error"]) == {"message", "type", "param", "code", "metadata"}
    assert envelope["error"]["code"] == code.value
    OpenAIError.model_validate(envelope)


@pytest.mark.rule("ERR-34")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (405, "invalid_request_error"),
        (408, "api_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "api_error"),
    ],
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    assert error_type(status) == kind


@pytest.mark.rule("ERR-5")
def test_metadata_holds_only_the_known_details_of_the_documented_set() -> None:
    error = ChatFrontError(FrontCode.FAULTED, "x", metadata={"request_id": "r", "prompt": "secret"})
    assert error.envelope()["error"]["metadata"] == {"request_id": "r"}
    assert ChatFrontError(FrontCode.FAULTED, "x").envelope()["error"]["metadata"] == {}


@pytest.mark.rule("STR-7", "ERR-35")
def test_in_a_stream_the_interval_is_in_metadata_and_the_type_is_the_streams() -> None:
    error = ChatFrontError(FrontCode.NO_ELIGIBLE_WORKER, "x", metadata={"request_id": "r"})
    inside = error.envelope(in_stream=True)["error"]
    assert inside["metadata"] == {"request_id": "r", "retry_after": 30}
    assert inside["type"] == "api_error"
    assert error.envelope()["error"]["metadata"] == {"request_id": "r"}


# Statuses and retry guidance

STATUSES = {
    FrontCode.BAD_REQUEST: 400,
    FrontCode.UNSUPPORTED_PARAMETER: 400,
    FrontCode.CONFLICT: 400,
    FrontCode.MAX_KUDOS_EXCEEDED: 400,
    FrontCode.NO_WORKER_SUPPORTS_LIMIT: 400,
    FrontCode.INVALID_AUTHORIZATION: 401,
    FrontCode.MODEL_NOT_FOUND: 404,
    FrontCode.NO_WORKER_SUPPORTS_FEATURES: 404,
    FrontCode.UNKNOWN_URL: 404,
    FrontCode.METHOD_NOT_SUPPORTED: 405,
    FrontCode.BODY_TIMEOUT: 408,
    FrontCode.HEADERS_TIMEOUT: 408,
    FrontCode.REQUEST_TIMEOUT: 408,
    FrontCode.TOO_LARGE: 413,
    FrontCode.URL_TOO_LONG: 414,
    FrontCode.UNSUPPORTED_ENCODING: 415,
    FrontCode.RATE_LIMIT_EXCEEDED: 429,
    FrontCode.HEADERS_TOO_LARGE: 431,
    FrontCode.INTERNAL: 500,
    FrontCode.HORDE_UNAVAILABLE: 502,
    FrontCode.FAULTED: 502,
    FrontCode.NO_GENERATION: 502,
    FrontCode.DIVERGED: 502,
    FrontCode.AT_CAPACITY: 503,
    FrontCode.SHUTTING_DOWN: 503,
    FrontCode.NO_ELIGIBLE_WORKER: 503,
    FrontCode.QUEUE_UNAVAILABLE: 503,
}


@pytest.mark.rule(
    "ERR-7", "ERR-8", "ERR-9", "ERR-10", "ERR-14", "ERR-15", "ERR-16", "ERR-17", "ERR-18", "ERR-19", "ERR-20", "ERR-21",
    "ERR-22", "ERR-23", "ERR-24", "ERR-25", "ERR-26",
)  # fmt: skip
def test_each_code_has_its_status() -> None:
    assert {code: spec.status for code, spec in ERROR_TABLE.items()} == STATUSES


@pytest.mark.rule("RTY-1", "RTY-2")
@pytest.mark.parametrize("code", list(FrontCode))
def test_retry_after_is_sent_on_every_503_and_on_the_waits_408(code: FrontCode) -> None:
    spec = ERROR_TABLE[code]
    waits = spec.status == 503 or code is FrontCode.REQUEST_TIMEOUT
    assert ("retry-after" in ChatFrontError(code, "x").response_headers()) is waits


@pytest.mark.rule("RTY-4", "RTY-5", "RTY-6")
def test_automatic_retries_stop_where_a_job_exists_or_the_pool_is_the_same() -> None:
    held = {code for code, spec in ERROR_TABLE.items() if spec.held}
    assert held == {
        FrontCode.NO_WORKER_SUPPORTS_LIMIT,
        FrontCode.NO_WORKER_SUPPORTS_FEATURES,
        FrontCode.REQUEST_TIMEOUT,
        FrontCode.INTERNAL,
        FrontCode.FAULTED,
        FrontCode.NO_GENERATION,
        FrontCode.DIVERGED,
        FrontCode.NO_ELIGIBLE_WORKER,
        FrontCode.QUEUE_UNAVAILABLE,
    }
    assert ChatFrontError(FrontCode.FAULTED, "x").response_headers()["x-should-retry"] == "false"
    assert "x-should-retry" not in ChatFrontError(FrontCode.AT_CAPACITY, "x").response_headers()


# Native refusals


@pytest.mark.rule("ERR-4", "ERR-6", "ERR-12", "ERR-13", "KUD-12")
def test_a_native_refusal_keeps_its_status_code_and_message() -> None:
    answer = refusal(403, {"message": "The free allowance is 512 tokens.", "rc": "KudosUpfront"})
    error = refusal_error(answer, request())
    assert (error.status, error.code, error.message) == (403, "KudosUpfront", "The free allowance is 512 tokens.")
    assert error.metadata == {"rc": "KudosUpfront"}
    assert not error.held


def test_messages_that_do_not_fit_are_the_hordes_refusal_about_messages() -> None:
    body = {"message": "The messages do not fit into 4096 tokens.", "rc": "PromptExceedsContext"}
    error = refusal_error(refusal(400, body), request())
    assert (error.status, error.code, error.param) == (400, "PromptExceedsContext", "messages")


@pytest.mark.rule("ERR-11")
def test_an_unknown_key_is_the_hordes_401() -> None:
    error = refusal_error(refusal(401, {"message": "No user has this key.", "rc": "InvalidAPIKey"}), request())
    assert (error.status, error.code) == (401, "InvalidAPIKey")
    assert error.envelope()["error"]["type"] == "authentication_error"


@pytest.mark.rule("ERR-19", "ERR-28")
def test_a_429_keeps_its_headers_and_has_a_code_without_a_native_one() -> None:
    headers = {"retry_after": "9", "x_ratelimit_limit": "60", "x_ratelimit_remaining": "0"}
    error = refusal_error(refusal(429, {"message": "Too many."}, **headers), request())
    assert error.code == "rate_limit_exceeded"
    assert error.response_headers() == {"retry-after": "9", "x-ratelimit-limit": "60", "x-ratelimit-remaining": "0"}
    named = refusal_error(refusal(429, {"message": "Too many.", "rc": "TooManyPrompts"}), request())
    assert named.code == "TooManyPrompts"
    assert named.retry_after is None


@pytest.mark.rule("ERR-27", "RTY-1")
@pytest.mark.parametrize("rc", ["ChatAdmissionDisabled", "ChatImageStorageUnavailable", "MaintenanceMode"])
def test_a_native_503_always_has_an_interval(rc: str) -> None:
    error = refusal_error(refusal(503, {"message": "Not now.", "rc": rc}), request())
    assert (error.status, error.code, error.retry_after) == (503, rc, 30)
    again = refusal_error(refusal(503, {"message": "Not now.", "rc": rc}, retry_after="120"), request())
    assert again.retry_after == 120


@pytest.mark.rule("REQ-31", "REQ-32", "ERR-14")
def test_an_unknown_model_is_model_not_found_at_the_entry_the_horde_names() -> None:
    body = {"message": "'models[1]' names a model this Horde does not know: b", "rc": "UnknownChatModel"}
    listed = refusal_error(refusal(404, body), request(model=None, models=["a", "b"]))
    assert (listed.status, listed.code, listed.param) == (404, "model_not_found", "models[1]")
    assert listed.metadata == {"rc": "UnknownChatModel"}
    assert listed.message == body["message"]
    single = refusal_error(refusal(404, {**body, "message": "'models[0]' names none"}), request())
    assert (single.param, single.message) == ("model", "'model' names none")


@pytest.mark.rule("NEW-1", "NEW-2", "RTY-6")
def test_a_model_without_a_worker_is_refused_at_once_and_not_to_be_retried() -> None:
    body = {"message": "No worker serves 'a/b'.", "rc": "NoOnlineChatWorker"}
    error = refusal_error(refusal(503, body), request())
    assert (error.status, error.code, error.param) == (503, "no_eligible_worker", "model")
    assert error.response_headers() == {"retry-after": "30", "x-should-retry": "false"}
    assert refusal_error(refusal(503, body), request(model=None, models=["a"])).param == "models"


@pytest.mark.rule("KUD-3", "KUD-4", "KUD-5", "ERR-9")
def test_a_kudos_cap_refusal_carries_both_numbers() -> None:
    message = "The estimated cost of this request is 24.38 kudos, over its cap of 10 kudos."
    error = refusal_error(refusal(400, {"message": message, "rc": "ChatKudosCapExceeded"}), request())
    assert (error.status, error.code, error.param) == (400, "max_kudos_exceeded", "horde.max_kudos")
    assert error.metadata == {"rc": "ChatKudosCapExceeded", "kudos_estimate": 24.38, "max_kudos": 10}
    assert error.message == message


@pytest.mark.rule("KUD-6")
def test_a_kudos_cap_message_of_another_form_leaves_the_numbers_out() -> None:
    error = refusal_error(refusal(400, {"message": "Too dear.", "rc": "ChatKudosCapExceeded"}), request())
    assert error.metadata == {"rc": "ChatKudosCapExceeded"}


@pytest.mark.rule("REQ-47", "REQ-48")
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("max_length", "max_tokens"),
        ("params.max_length", "max_tokens"),
        ("stop_sequence", "stop"),
        ("temperature", "temperature"),
        ("max_context_length", "horde.max_context_length"),
        ("max_kudos", "horde.max_kudos"),
        ("models", "model"),
    ],
)
def test_a_native_validation_failure_names_the_key_that_the_client_sent(field: str, param: str) -> None:
    body = {"message": "Input payload validation failed", "errors": {field: "is too long", "seed": "is odd"}}
    error = refusal_error(refusal(400, body), request())
    assert (error.status, error.code, error.param) == (400, "BadRequest", param)
    assert "is too long" in error.message


@pytest.mark.rule("REQ-48")
def test_the_newer_token_limit_key_is_named_when_the_client_used_it() -> None:
    body = {"message": "Input payload validation failed", "errors": {"max_length": "no"}}
    assert refusal_error(refusal(400, body), request(max_completion_tokens=64)).param == "max_completion_tokens"


# Endings of a wait


@pytest.mark.rule("ERR-29", "ERR-30")
def test_a_fault_after_refused_replies_reports_the_last_refusal() -> None:
    sentence = "The request's 'response_format' is 'json_object', so the reply content has to be JSON."
    error = answered(RequestFaultedError(Fault("ChatSubmitNonconformant", sentence)))
    assert error.envelope() == {
        "error": {
            "message": f"The AI Horde reports request {REQUEST_ID} as faulted after refusing a worker's reply "
            f"(ChatSubmitNonconformant): {sentence}",
            "type": "api_error",
            "param": None,
            "code": "ChatRequestFaulted",
            "metadata": {"request_id": REQUEST_ID, "rc": "ChatSubmitNonconformant"},
        }
    }


@pytest.mark.rule("ERR-31", "ERR-32")
def test_a_fault_its_worker_reported_says_so() -> None:
    sentence = "The worker could not fit the prompt into its context."
    error = answered(RequestFaultedError(Fault("ChatWorkerFault", sentence)))
    assert error.message == (
        f"The AI Horde reports request {REQUEST_ID} as faulted after its worker reported a fault (ChatWorkerFault): "
        f"{sentence}"
    )
    assert error.metadata == {"request_id": REQUEST_ID, "rc": "ChatWorkerFault"}


@pytest.mark.rule("ERR-20", "WAI-8")
def test_a_fault_without_a_reason_is_still_a_502() -> None:
    error = answered(RequestFaultedError(None))
    assert (error.status, error.message) == (502, f"The AI Horde reports request {REQUEST_ID} as faulted.")


@pytest.mark.rule("NEW-6", "NEW-7", "NEW-8", "NEW-20", "RTY-2")
def test_a_declaration_gap_lists_what_is_missing_and_points_to_best_effort_for_guarantees() -> None:
    error = answered(DeclarationGapError(ImpossibleReason("declaration_gap", ("tool_choice_enforced", "tools"), ())))
    assert (error.status, error.code, error.retry_after) == (404, "no_worker_supports_features", None)
    assert "tool_choice_enforced, tools" in error.message
    assert "best_effort" in error.message
    features = answered(DeclarationGapError(ImpossibleReason("declaration_gap", ("tools",), ())))
    assert "best_effort" not in features.message


@pytest.mark.rule("NEW-9", "NEW-10", "NEW-11", "NEW-12", "NEW-18", "RTY-2")
def test_a_gap_of_sizes_alone_is_a_400_that_states_the_largest() -> None:
    cards = {"a/b": {"top_provider": {"max_completion_tokens": 1024, "context_length": 4096}}}
    reason = ImpossibleReason("declaration_gap", (), ("max_length",))
    error = wait_error_answer(DeclarationGapError(reason), request(), REQUEST_ID, cards)
    assert (error.status, error.code, error.param) == (400, "no_worker_supports_limit", "max_tokens")
    assert error.message == (
        "No worker eligible for this request currently declares a completion limit that high; the largest any online "
        "worker for the model declares now is 1024 tokens."
    )
    assert error.envelope()["error"]["type"] == "invalid_request_error"
    context = ImpossibleReason("declaration_gap", (), ("max_context_length",))
    other = wait_error_answer(DeclarationGapError(context), request(), REQUEST_ID, cards)
    assert other.param == "horde.max_context_length"
    assert (
        "a context length that high; the largest any online worker for the model declares now is 4096" in other.message
    )


@pytest.mark.rule("NEW-13")
def test_under_models_the_largest_of_the_listed_ones_is_stated() -> None:
    cards = {name: {"top_provider": {"max_completion_tokens": size}} for name, size in (("a", 512), ("b", 2048))}
    reason = ImpossibleReason("declaration_gap", (), ("max_length",))
    error = wait_error_answer(DeclarationGapError(reason), request(model=None, models=["a", "b"]), REQUEST_ID, cards)
    assert "the largest any online worker for the listed models declares now is 2048 tokens." in error.message


@pytest.mark.rule("NEW-14")
def test_without_a_card_the_limits_name_stands_in_for_the_number() -> None:
    error = answered(DeclarationGapError(ImpossibleReason("declaration_gap", (), ("max_length",))))
    assert "max_length" in error.message


@pytest.mark.rule("NEW-16")
def test_a_size_beside_another_cause_is_a_404() -> None:
    error = answered(DeclarationGapError(ImpossibleReason("declaration_gap", ("seed",), ("max_length",))))
    assert (error.status, error.code) == (404, "no_worker_supports_features")
    clamped = answered(DeclarationGapError(ImpossibleReason("declaration_gap", (), ("tools_max_temperature",))))
    assert clamped.status == 404
    assert "tools_max_temperature" in clamped.message


@pytest.mark.rule("NEW-4", "NEW-22", "RTY-3")
def test_nobody_eligible_after_the_grace_is_a_503_with_thirty_seconds() -> None:
    error = answered(NoEligibleWorkerError())
    assert (error.status, error.code) == (503, "no_eligible_worker")
    assert error.response_headers() == {"retry-after": "30", "x-should-retry": "false"}
    assert "model card" in error.message


@pytest.mark.rule("FFA-2", "FFA-6", "FFA-7", "RTY-3")
def test_no_free_thread_is_queue_unavailable_with_three_numbers() -> None:
    error = answered(QueueUnavailableError("no_eligible_threads", threads=0, wait_time=12, budget_left=539.6))
    assert (error.status, error.code, error.param) == (503, "queue_unavailable", "horde.availability_mode")
    assert error.retry_after == 30
    assert error.reason == "no_eligible_threads"
    assert all(part in error.message for part in ("0 eligible", "12 s", "540 s"))


@pytest.mark.rule("FFA-4", "RTY-3")
@pytest.mark.parametrize(("wait", "interval"), [(580.0, 580), (4000.0, 600), (0.2, 1)])
def test_too_long_a_queue_tells_its_wait_capped(wait: float, interval: int) -> None:
    error = answered(QueueUnavailableError("wait_exceeds_budget", threads=2, wait_time=wait, budget_left=0.1))
    assert error.retry_after == interval


@pytest.mark.rule("WAI-7", "ERR-16")
def test_the_deadline_is_a_408_that_stops_automatic_retries() -> None:
    error = answered(WaitTimeoutError())
    assert (error.status, error.code) == (408, "ChatRequestTimeout")
    assert error.response_headers() == {"retry-after": "30", "x-should-retry": "false"}


@pytest.mark.rule("DWG-3", "ERR-21")
def test_done_without_a_generation_is_a_502() -> None:
    assert (answered(NoGenerationError()).status, answered(NoGenerationError()).code) == (
        502,
        "ChatRequestNoGeneration",
    )


@pytest.mark.rule("DLT-40")
def test_a_diverged_stream_names_the_request() -> None:
    inside = answered(StreamDivergedError()).envelope(in_stream=True)["error"]
    assert (inside["type"], inside["code"]) == ("api_error", "ChatStreamDiverged")
    assert inside["metadata"] == {"request_id": REQUEST_ID}


@pytest.mark.rule("WAI-9")
def test_a_status_that_the_horde_refuses_keeps_its_refusal_and_stops_retries() -> None:
    answer = refusal(404, {"message": "No such request.", "rc": "RequestNotFound"})
    error = answered(StatusRefusedError(answer))
    assert (error.status, error.code) == (404, "RequestNotFound")
    assert error.metadata == {"request_id": REQUEST_ID, "rc": "RequestNotFound"}
    assert error.response_headers()["x-should-retry"] == "false"
