"""OpenAI's bodies to native ones and back: request, completion, model card. Pure; every builder returns a new dict."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from horde_sdk.generation_parameters.text.chat_policy import ChatFeature, ChatGuarantee

from horde.chat_contract import estimate_prompt_tokens, estimate_text_tokens
from horde.oai.native_status import Generation, NativeStatus
from horde.oai.schema import ChatCompletionRequest

__all__ = [
    "ReplyContext",
    "build_completion",
    "build_model_card",
    "build_native_chat_body",
    "build_system_fingerprint",
    "estimate_request_tokens",
    "estimate_tokens",
    "relays_deltas",
    "uses_estimates",
]

_FINISH_REASONS: Final = frozenset({"stop", "length", "content_filter", "tool_calls"})

_NATIVE_PARAMS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "reasoning_effort": "reasoning_effort",
}
"""OpenAI's sampling keys and the native ones; lengths and stops are mapped by hand."""

_FORWARDED: Final = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
_FORWARDED_OPTIONS: Final = (
    "conformance",
    "context_fit",
    "max_kudos",
    "openai_guards",
    "workers",
    "trusted_workers",
    "slow_workers",
)

_BASE_PARAMETERS: Final = ("max_tokens", "temperature", "top_p", "stop")
_PARAMETERS_BY_DECLARATION: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("seed", frozenset({ChatFeature.SEED})),
    ("frequency_penalty", frozenset({ChatFeature.FREQUENCY_PENALTY})),
    ("presence_penalty", frozenset({ChatFeature.PRESENCE_PENALTY})),
    ("tools", frozenset({ChatFeature.TOOLS})),
    ("tool_choice", frozenset({ChatFeature.TOOLS, ChatGuarantee.TOOL_CHOICE_ENFORCED})),
    ("parallel_tool_calls", frozenset({ChatFeature.TOOLS, ChatGuarantee.SINGLE_TOOL_CALL_ENFORCED})),
    ("reasoning_effort", frozenset({ChatFeature.REASONING_EFFORT})),
)
"""Parameters of a card and the declarations that all have to be there (MDL-7 to MDL-12)."""

_EMPTY_NOTICE: Final = "The worker returned neither visible text nor tool calls."
_THINKING_NOTICE: Final = (
    "The reply ran out of tokens while the model was reasoning. Send a fresh request with a larger max_tokens or a "
    "lower reasoning_effort."
)


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What a reply is built with besides the generation.

    Attributes:
        request_id: The Horde's id.
        fallback_model: The model to name when the Horde names none (RES-23).
        prompt_tokens: The estimate, for a reply whose worker counted none; a body is not kept for it.
        created: When the front accepted the request, Unix seconds.
        include_reasoning: Whether the client gets the reasoning text.
    """

    request_id: str
    fallback_model: str
    prompt_tokens: int
    created: int
    include_reasoning: bool

    @property
    def completion_id(self) -> str:
        """The ``id`` of the completion and of every chunk (decision U23)."""
        return f"chatcmpl-{self.request_id}"


def build_native_chat_body(
    request: ChatCompletionRequest, body: Mapping[str, Any], *, operation_key: str, relay: bool
) -> dict[str, Any]:
    """Return the body of the native submit: the client's values under native names, nothing filled in (U55).

    Args:
        request: The validated request.
        body: The screened body it was read from, whose messages and tools are forwarded verbatim.
        operation_key: The front's key of this submit (SUB-1).
        relay: Whether live text is asked for (DLT-3).
    """
    options = request.horde
    params: dict[str, Any] = {native: body[key] for key, native in _NATIVE_PARAMS.items() if key in body}
    if request.token_limit is not None:
        params["max_length"] = request.token_limit
    if options is not None and options.max_context_length is not None:
        params["max_context_length"] = options.max_context_length
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if stops := [stop for stop in stops if stop]:
        params["stop_sequence"] = stops
    native: dict[str, Any] = {
        "messages": body["messages"],
        "models": list(request.accepted_models),
        "operation_key": operation_key,
    }
    if params:
        native["params"] = params
    native |= {key: body[key] for key in _FORWARDED if key in body}
    given = body.get("horde") or {}
    native |= {key: given[key] for key in _FORWARDED_OPTIONS if given.get(key) is not None}
    if relay:
        native["stream"] = True
    return native


def relays_deltas(request: ChatCompletionRequest) -> bool:
    """Return whether a request's text may be relayed while it is generated (DLT-1).

    Tool calls and structured output are verified on the complete reply alone; text sent before could belong to a reply
    that is then refused (DLT-2).
    """
    if not request.stream or request.tools:
        return False
    return request.response_format is None or request.response_format.type == "text"


def build_system_fingerprint(worker_id: str | None, model: str | None) -> str | None:
    """Return ``fp_`` and ten hex characters for a worker and model, or None without a worker (RES-24, U61)."""
    if worker_id is None:
        return None
    return "fp_" + hashlib.sha256(f"{worker_id}\n{model or ''}".encode()).hexdigest()[:10]


def estimate_tokens(text: str) -> int:
    """Return the estimated tokens of a text, where no worker reported a count (RES-21)."""
    return estimate_text_tokens(text)


def estimate_request_tokens(body: Mapping[str, Any]) -> int:
    """Return the estimated tokens of a request's prompt.

    Args:
        body: The request as forwarded.
    """
    return estimate_prompt_tokens(
        body["messages"],
        tools=body.get("tools"),
        tool_choice=body.get("tool_choice"),
        response_format=body.get("response_format"),
    )


def uses_estimates(generation: Generation) -> bool:
    """Return whether a count of the usage has to be estimated."""
    return generation.prompt_tokens is None or generation.completion_tokens is None


def _build_usage(context: ReplyContext, generation: Generation) -> dict[str, Any]:
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    if prompt is None:
        prompt = context.prompt_tokens
    if completion is None:
        calls = ((call["function"]["name"], call["function"]["arguments"]) for call in generation.tool_calls)
        texts = (generation.content or "", generation.reasoning or "", *(text for call in calls for text in call))
        completion = sum(estimate_tokens(text) for text in texts)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if generation.reasoning_tokens is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": generation.reasoning_tokens}
    return usage


def _build_message(context: ReplyContext, generation: Generation) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
        }
        for call in generation.tool_calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": generation.content or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    if context.include_reasoning and generation.reasoning:
        message["reasoning_content"] = generation.reasoning
    return message


def _find_notice(generation: Generation) -> str | None:
    if generation.tool_calls or (generation.content or "").strip():
        return None
    return _THINKING_NOTICE if generation.reasoning and generation.finish_reason == "length" else _EMPTY_NOTICE


def _build_details(context: ReplyContext, generation: Generation, status: NativeStatus) -> dict[str, Any]:
    details: dict[str, Any] = {
        "request_id": context.request_id,
        "worker_id": generation.worker_id,
        "worker_name": generation.worker_name,
        "kudos": generation.kudos,
        "queue_wait_seconds": generation.queue_wait_seconds,
        "context_adjustments": status.adjustments,
        "estimated_usage": uses_estimates(generation),
    }
    if notice := _find_notice(generation):
        details["notice"] = notice
    return details


def _finish_reason(generation: Generation) -> str:
    if generation.finish_reason in _FINISH_REASONS:
        return str(generation.finish_reason)
    return "tool_calls" if generation.tool_calls else "stop"


def build_completion(context: ReplyContext, generation: Generation, status: NativeStatus) -> dict[str, Any]:
    """Return the whole completion (RES, decision U21).

    Args:
        context: The request's side.
        generation: The reply.
        status: The status it came in, for the context adjustments.
    """
    model = generation.model or context.fallback_model
    return {
        "id": context.completion_id,
        "object": "chat.completion",
        "created": context.created,
        "model": model,
        "system_fingerprint": build_system_fingerprint(generation.worker_id, model),
        "choices": [
            {
                "index": 0,
                "message": _build_message(context, generation),
                "logprobs": None,
                "finish_reason": _finish_reason(generation),
                "native_finish_reason": generation.native_finish_reason,
            }
        ],
        "usage": _build_usage(context, generation),
        "x_horde": _build_details(context, generation, status),
    }


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def build_model_card(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the card of one entry of the native model list, or None when no chat worker serves it (MDL).

    Args:
        entry: An entry of ``GET /v2/status/models?type=text``.
    """
    chat, name = entry.get("chat"), entry.get("name")
    if not isinstance(chat, Mapping) or not isinstance(name, str) or not (workers := _count(chat.get("workers"))):
        return None
    if ":" in name:
        return None
    listed = chat.get("features")
    features = (
        frozenset(feature for feature in listed if isinstance(feature, str))
        if isinstance(listed, list)
        else frozenset()
    )
    inputs = ["text", "image"] if ChatFeature.VISION in features else ["text"]
    context_length, max_length = _count(chat.get("max_context_length")), _count(chat.get("max_length"))
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "ai-horde",
        "name": name,
        "context_length": context_length,
        "architecture": {
            "modality": f"{'+'.join(inputs)}->text",
            "input_modalities": inputs,
            "output_modalities": ["text"],
        },
        "top_provider": {"context_length": context_length, "max_completion_tokens": max_length, "is_moderated": False},
        "supported_parameters": _supported_parameters(features),
        "x_horde": {
            "workers": workers,
            "threads": _count(chat.get("threads")),
            "queued_tokens": _count(entry.get("queued")),
            "queued_requests": _count(entry.get("jobs")),
            "eta_seconds": _count(entry.get("eta")),
        },
    }


def _supported_parameters(features: frozenset[str]) -> list[str]:
    parameters = [*_BASE_PARAMETERS]
    parameters += [name for name, needed in _PARAMETERS_BY_DECLARATION if needed <= features]
    if features & {ChatFeature.JSON_OBJECT, ChatFeature.JSON_SCHEMA}:
        parameters.append("response_format")
    return parameters
