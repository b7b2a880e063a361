"""``reasoning_effort`` in the words of each kind of server (RSN-10 to RSN-13). Pure.

An effort is a share of the reply that may be thought: what is thought and what is answered come out of one
``max_tokens``. Where the server closes the thinking at a number of tokens it is told that number; where it knows words
for efforts it is told those. ``none`` always turns thinking off.

Which of a server's mappings works is found out at start, since it depends on the model and on how the server was
started: the first one counts under which the model was seen to think at ``medium`` and not at ``none``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from horde_sdk.generation_parameters.text.chat_policy import ChatReasoningEffort

__all__ = [
    "KOBOLDCPP_EFFORTS",
    "LLAMA_CPP_EFFORTS",
    "OLLAMA_EFFORTS",
    "OPENAI_EFFORTS",
    "TABBYAPI_EFFORTS",
    "VLLM_EFFORTS",
    "EffortMapping",
    "thinking_budget",
]

_SHARES: Final[Mapping[str, Fraction]] = {
    ChatReasoningEffort.NONE: Fraction(0),
    ChatReasoningEffort.MINIMAL: Fraction(1, 10),
    ChatReasoningEffort.LOW: Fraction(1, 4),
    ChatReasoningEffort.MEDIUM: Fraction(1, 2),
}
"""Share of the reply's tokens; KoboldCpp's own shares. Above them thinking has no cap but the reply's."""

_OLLAMA_LEVELS: Final[Mapping[str, str]] = {
    ChatReasoningEffort.MINIMAL: "low",
    ChatReasoningEffort.LOW: "low",
    ChatReasoningEffort.MEDIUM: "medium",
}


def thinking_budget(effort: str, max_tokens: int) -> int | None:
    """Return the tokens that may be thought; None when only the reply's length bounds them.

    Args:
        effort: As the Horde sent it; one of a later release counts as one without a cap.
        max_tokens: Longest reply, thinking included (RSN-13).
    """
    share = _SHARES.get(effort)
    return None if share is None else int(max_tokens * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortMapping:
    """How one kind of server is told an effort.

    Attributes:
        name: What is sent, for people.
        keys: Takes the effort and the longest reply, returns keys of the request's body.
        closes_thinking: The server ends the thinking at the budget and goes on to the answer (RSN-10).
    """

    name: str
    keys: Callable[[str, int], dict[str, Any]]
    closes_thinking: bool = False


def _thinks(effort: str) -> bool:
    return effort != ChatReasoningEffort.NONE


def _word(effort: str, _max_tokens: int) -> dict[str, Any]:
    return {"reasoning_effort": effort}


def _switch(effort: str, _max_tokens: int) -> dict[str, Any]:
    return {"chat_template_kwargs": {"enable_thinking": _thinks(effort)}}


def _word_and_switch(effort: str, max_tokens: int) -> dict[str, Any]:
    return _word(effort, max_tokens) | _switch(effort, max_tokens)


def _with_budget(key: str) -> Callable[[str, int], dict[str, Any]]:
    def keys(effort: str, max_tokens: int) -> dict[str, Any]:
        budget = thinking_budget(effort, max_tokens)
        capped = {} if budget is None or not _thinks(effort) else {key: budget}
        return _word_and_switch(effort, max_tokens) | capped

    return keys


def _ollama_level(effort: str, _max_tokens: int) -> dict[str, Any]:
    return {"think": _OLLAMA_LEVELS.get(effort, "high") if _thinks(effort) else False}


def _ollama_switch(effort: str, _max_tokens: int) -> dict[str, Any]:
    return {"think": _thinks(effort)}


_OPENAI_WORD_AND_SWITCH: Final = EffortMapping(
    name="`reasoning_effort` and the template's `enable_thinking`", keys=_word_and_switch
)

OPENAI_EFFORTS: Final = (
    _OPENAI_WORD_AND_SWITCH,
    EffortMapping(name="`reasoning_effort`", keys=_word),
    EffortMapping(name="the template's `enable_thinking`", keys=_switch),
)

LLAMA_CPP_EFFORTS: Final = (
    EffortMapping(
        name="`thinking_budget_tokens`, `reasoning_effort` and the template's `enable_thinking`",
        keys=_with_budget("thinking_budget_tokens"),
        closes_thinking=True,
    ),
    _OPENAI_WORD_AND_SWITCH,
)

KOBOLDCPP_EFFORTS: Final = (
    EffortMapping(name="`reasoning_effort`, of which it makes a budget itself", keys=_word, closes_thinking=True),
)

VLLM_EFFORTS: Final = (
    EffortMapping(
        name="`thinking_token_budget`, `reasoning_effort` and the template's `enable_thinking`",
        keys=_with_budget("thinking_token_budget"),
        closes_thinking=True,
    ),
    _OPENAI_WORD_AND_SWITCH,
)

TABBYAPI_EFFORTS: Final = (
    EffortMapping(
        name="`reasoning_budget_tokens`, `reasoning_effort` and the template's `enable_thinking`",
        keys=_with_budget("reasoning_budget_tokens"),
        closes_thinking=True,
    ),
    _OPENAI_WORD_AND_SWITCH,
)

OLLAMA_EFFORTS: Final = (
    EffortMapping(name="`think` as a level", keys=_ollama_level),
    EffortMapping(name="`think` as a switch", keys=_ollama_switch),
)
