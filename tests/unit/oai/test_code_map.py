"""The modules and names that the reference document's code map fixes (rules MAP)."""

import importlib
import inspect

import pytest
from opentelemetry.metrics import Meter

NAMES = {
    "MAP-1": ("horde.oai.__main__", ["main", "configure_telemetry", "FRONT_SERVICE_NAME"]),
    "MAP-2": ("horde.oai.settings", ["FrontSettings", "load_settings"]),
    "MAP-3": ("horde.oai.app", ["create_app", "FrontState"]),
    "MAP-4": ("horde.oai.app", ["InflightLimiter", "InflightSlot"]),
    "MAP-8": ("horde.oai.app", ["RequestTrace"]),
    "MAP-9": ("horde.oai.app", ["ChatFrontError"]),
    "MAP-10": ("horde.oai.schema", ["ChatCompletionRequest", "ChatCompletionResponse", "ErrorMetadata"]),
    "MAP-11": ("horde.oai.schema", ["OpenAIError"]),
    "MAP-12": ("horde.oai.schema", ["find_refused_parameter", "drop_default_no_ops"]),
    "MAP-13": ("horde.oai.schema", ["drop_unknown_nested_keys"]),
    "MAP-14": ("horde.oai.schema", ["DEFAULT_NO_OP_PARAMETERS"]),
    "MAP-15": ("horde.oai.schema", ["SUPPORTED_MESSAGE_KEYS"]),
    "MAP-16": ("horde.oai.mapping", ["build_native_chat_body", "build_completion", "estimate_tokens"]),
    "MAP-17": ("horde.oai.mapping", ["build_model_card"]),
    "MAP-18": ("horde.oai.mapping", ["build_system_fingerprint"]),
    "MAP-19": ("horde.oai.mapping", ["relays_deltas"]),
    "MAP-20": (
        "horde.oai.sse",
        ["build_completion_events", "build_delta_events", "build_keepalive_event", "build_error_events"],
    ),
    "MAP-21": ("horde.oai.app", ["DeltaRelay"]),
    "MAP-22": ("horde.oai.attribution", ["build_client_agent"]),
    "MAP-23": ("horde.oai.horde_client", ["HordeClient", "create_http_client", "cancel_max_connections"]),
    "MAP-24": ("horde.oai.waiter", ["CompletionSignalListener"]),
    "MAP-25": ("horde.oai.waiter", ["DeltaStreamReader", "DeltaSubscription", "DeltaEntry"]),
    "MAP-26": ("horde.oai.waiter", ["ChatRequestWatcher", "WaitBudget", "WakeSource"]),
    "MAP-27": ("horde.oai.waiter", ["NoEligibleWorkerError", "DeclarationGapError"]),
    "MAP-28": ("horde.oai.waiter", ["POSITIONED_READ_WAIT_SECONDS"]),
    "MAP-29": ("horde.oai.metrics", ["FrontMetrics", "histogram_views", "BUCKETS_BODY_BYTES"]),
    "MAP-30": ("horde.oai.app", ["NATIVE_FIELD_PARAMETERS"]),
    "MAP-32": ("horde.oai.app", ["HORDE_CHAT_REQUEST_EXPIRY_SECONDS", "MAX_FAILED_CANCELS"]),
    "MAP-34": ("horde.chat_contract", ["find_contract_violation", "ChatMessage", "ToolDefinition", "ResponseFormat"]),
    "MAP-35": ("horde.chat_contract", ["kudos_cap_excess_message", "KUDOS_CAP_EXCESS_PATTERN"]),
    "MAP-36": (
        "horde.chat_contract",
        [
            "MAX_CHAT_TOOL_CALL_COUNT",
            "MAX_CHAT_TOOL_CALL_ID_LENGTH",
            "MAX_CHAT_TOOL_CALL_NAME_LENGTH",
            "MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES",
        ],
    ),
    "MAP-37": ("horde.telemetry", ["telemetry_enabled", "init_pyroscope"]),
    "MAP-38": ("horde.metrics", ["BUCKETS_SECONDS", "BUCKETS_REQUEST_LIFECYCLE_SECONDS"]),
}


@pytest.mark.rule(
    "MAP-1", "MAP-2", "MAP-3", "MAP-4", "MAP-8", "MAP-9", "MAP-10", "MAP-11", "MAP-12", "MAP-13", "MAP-14", "MAP-15",
    "MAP-16", "MAP-17", "MAP-18", "MAP-19", "MAP-20", "MAP-21", "MAP-22", "MAP-23", "MAP-24", "MAP-25", "MAP-26",
    "MAP-27", "MAP-28", "MAP-29", "MAP-30", "MAP-32", "MAP-34", "MAP-35", "MAP-36", "MAP-37", "MAP-38",
)  # fmt: skip
@pytest.mark.parametrize("rule", NAMES)
def test_the_names_of_the_code_map_are_public_in_their_modules(rule: str) -> None:
    module_name, names = NAMES[rule]
    module = importlib.import_module(module_name)
    assert set(names) <= set(module.__all__)
    assert all(hasattr(module, name) for name in names)


@pytest.mark.rule("MAP-28", "MAP-32", "MAP-33", "SET-14")
def test_the_fixed_constants_have_their_values() -> None:
    from horde.chat_contract import MAX_CHAT_MODEL_COUNT, NATIVE_REQUEST_PATH_PATTERN  # noqa: PLC0415
    from horde.oai import app, deltas, wait_answers, waiter  # noqa: PLC0415

    assert waiter.POSITIONED_READ_WAIT_SECONDS == 2
    assert app.HORDE_CHAT_REQUEST_EXPIRY_SECONDS == 1200
    assert app.MAX_FAILED_CANCELS == 10_000
    assert wait_answers.QUEUE_UNAVAILABLE_RETRY_AFTER_CAP_SECONDS == 600
    assert deltas.DELTA_READ_TIMEOUT_SECONDS == 5
    assert MAX_CHAT_MODEL_COUNT == 5
    assert NATIVE_REQUEST_PATH_PATTERN.match("'models[1]' names no model")


@pytest.mark.rule("MAP-39")
def test_create_app_takes_a_meter() -> None:
    from horde.oai.app import create_app  # noqa: PLC0415

    parameter = inspect.signature(create_app).parameters["meter"]
    assert parameter.default is None
    assert Meter in getattr(parameter.annotation, "__args__", ())


@pytest.mark.rule("GEN-1", "GEN-4", "GEN-5")
def test_the_front_imports_neither_the_horde_nor_the_worker() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = (
        "import sys, horde.oai.app, horde.oai.__main__\n"
        "foreign = ('horde.native', 'horde.worker', 'horde.local', 'flask')\n"
        "loaded = [name for name in sys.modules if name.startswith(foreign)]\n"
        "sys.exit(repr(loaded) if loaded else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()
