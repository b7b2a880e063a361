"""What front and native Horde agree on: names of the wire, shapes, request rules, sizes, the token estimate.

The modules behind it hold one subject each; every importer takes the names from here.
"""

from horde.chat_rules.depth import exceeds_depth
from horde.chat_rules.estimate import estimate_prompt_tokens, estimate_text_tokens, iter_message_texts
from horde.chat_rules.limits import (
    MAX_CHAT_STOP_LENGTH,
    MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES,
    MAX_CHAT_TOOL_CALL_COUNT,
    MAX_CHAT_TOOL_CALL_ID_LENGTH,
    MAX_CHAT_TOOL_CALL_NAME_LENGTH,
)
from horde.chat_rules.rules import find_contract_violation, find_native_violation
from horde.chat_rules.schema_cost import find_schema_excess
from horde.chat_rules.shapes import (
    SERVED_ROLES,
    ChatMessage,
    ResponseFormat,
    Shape,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    error_path,
)
from horde.chat_rules.violation import ContractViolation, ViolationCode
from horde.chat_rules.wire import (
    ANONYMOUS_API_KEY,
    CHAT_QUEUE_KEY,
    CHAT_REQUEST_EXPIRY_SECONDS,
    CHAT_SIGNALS_CHANNEL,
    DEFAULT_MAX_TOKENS,
    KUDOS_CAP_EXCESS_PATTERN,
    MAX_CHAT_MODEL_COUNT,
    NATIVE_REQUEST_PATH_PATTERN,
    VALIDATION_FAILED_MESSAGE,
    EndedReason,
    SignalEvent,
    chat_stream_key,
    kudos_cap_excess_message,
    unknown_model_message,
)
from horde.chat_rules.wording import describe_validation_error

__all__ = [
    "ANONYMOUS_API_KEY",
    "CHAT_QUEUE_KEY",
    "CHAT_REQUEST_EXPIRY_SECONDS",
    "CHAT_SIGNALS_CHANNEL",
    "DEFAULT_MAX_TOKENS",
    "KUDOS_CAP_EXCESS_PATTERN",
    "MAX_CHAT_MODEL_COUNT",
    "MAX_CHAT_STOP_LENGTH",
    "MAX_CHAT_TOOL_CALL_ARGUMENT_BYTES",
    "MAX_CHAT_TOOL_CALL_COUNT",
    "MAX_CHAT_TOOL_CALL_ID_LENGTH",
    "MAX_CHAT_TOOL_CALL_NAME_LENGTH",
    "NATIVE_REQUEST_PATH_PATTERN",
    "SERVED_ROLES",
    "VALIDATION_FAILED_MESSAGE",
    "ChatMessage",
    "ContractViolation",
    "EndedReason",
    "ResponseFormat",
    "Shape",
    "SignalEvent",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "ViolationCode",
    "chat_stream_key",
    "describe_validation_error",
    "error_path",
    "estimate_prompt_tokens",
    "estimate_text_tokens",
    "exceeds_depth",
    "find_contract_violation",
    "find_native_violation",
    "find_schema_excess",
    "iter_message_texts",
    "kudos_cap_excess_message",
    "unknown_model_message",
]
