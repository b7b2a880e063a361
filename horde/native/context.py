"""Fitting a conversation into a context (CTX-1 to CTX-5); pure.

Fit means: estimated prompt ≤ context length. A turn is a user message up to the next one; assistant messages before the
first user message are a turn of their own, so a tool call and its answers are never parted. ``system`` and
``developer`` messages, the last user message and whatever comes after it are never dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

__all__ = [
    "DEFAULT_CONTEXT_LENGTH",
    "ContextFit",
    "ContextFitError",
    "Fitted",
    "default_context_length",
    "fit_context",
    "lower_length",
]

DEFAULT_CONTEXT_LENGTH: Final = 4096
"""Context length, in tokens, of a request that names none."""

_INSTRUCTIONS: Final = frozenset({"system", "developer"})


class ContextFit(StrEnum):
    """What to do with messages that do not fit."""

    TRUNCATE_OLDEST = "truncate_oldest"
    GROW = "grow"
    REJECT = "reject"


class ContextFitError(Exception):
    """The messages cannot be made to fit.

    Attributes:
        needed: Estimated tokens of what could not be left out.
        available: Tokens of the largest context that could be used.
    """

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"The messages take about {needed} tokens and the context holds {available}.")
        self.needed = needed
        self.available = available


@dataclass(frozen=True, slots=True)
class Fitted:
    """A conversation that fits.

    Attributes:
        kept: Indices of the messages that are left, in order.
        context_length: Context length in tokens, grown where that was needed.
        adjustments: What was done, as ``context_adjustments`` reports it.
    """

    kept: tuple[int, ...]
    context_length: int
    adjustments: tuple[Mapping[str, Any], ...] = field(default=())


def default_context_length(largest_declared: int | None) -> int:
    """Return the context length, in tokens, of a request that names none.

    Args:
        largest_declared: The largest context an online worker of the models declares, if any is online.
    """
    return min(DEFAULT_CONTEXT_LENGTH, largest_declared or DEFAULT_CONTEXT_LENGTH)


def lower_length(asked: int, largest_declared: int | None) -> tuple[int, Mapping[str, Any] | None]:
    """Return the reply length to ask for and the adjustment to report, if one was made (CTX-7, CTX-8).

    Args:
        asked: The length asked for, in tokens.
        largest_declared: The largest length that an online worker of the models declares, if any is online.
    """
    if largest_declared is None or asked <= largest_declared:
        return asked, None
    return largest_declared, {"from": asked, "to": largest_declared, "reason": "worker_max_length"}


def fit_context(
    messages: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    *,
    fixed_tokens: int,
    context_length: int,
    largest_declared: int | None,
    mode: ContextFit,
) -> Fitted:
    """Fit a conversation into a context.

    Args:
        messages: The conversation, validated.
        sizes: Estimated tokens of each message.
        fixed_tokens: Estimated tokens of what is beside the messages (tools, formats).
        context_length: The context length asked for, in tokens.
        largest_declared: The largest context that an online worker of the models declares; growth ends there.
        mode: What to do with messages that do not fit.

    Raises:
        ContextFitError: They cannot be made to fit.
    """
    everything = tuple(range(len(messages)))
    needed = fixed_tokens + sum(sizes)
    if needed <= context_length:
        return Fitted(everything, context_length)
    if mode is ContextFit.REJECT:
        raise ContextFitError(needed, context_length)
    grown = _grow(context_length, needed, max(context_length, largest_declared or 0))
    growth = () if grown == context_length else ({"from": context_length, "to": grown, "reason": "grow"},)
    if needed <= grown:
        return Fitted(everything, grown, growth)
    if mode is ContextFit.GROW:
        raise ContextFitError(needed, grown)
    kept = _drop_oldest_turns(messages, sizes, grown - fixed_tokens)
    if kept is None:
        raise ContextFitError(fixed_tokens + _undroppable_tokens(messages, sizes), grown)
    dropped = {"reason": "truncate_oldest", "dropped_messages": len(messages) - len(kept)}
    return Fitted(kept, grown, (*growth, dropped))


def _grow(context_length: int, needed: int, bound: int) -> int:
    """Return the context length doubled until the prompt fits: the estimate is rough, so a little room is wanted."""
    grown = context_length
    while grown < needed and grown < bound:
        grown = min(2 * grown, bound)
    return grown


def _protected_from(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the last user message, from which on nothing is dropped; 0 when there is none."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    return users[-1] if users else 0


def _undroppable_tokens(messages: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> int:
    last = _protected_from(messages)
    return sum(
        size
        for index, (message, size) in enumerate(zip(messages, sizes, strict=True))
        if index >= last or message["role"] in _INSTRUCTIONS
    )


def _turns(messages: Sequence[Mapping[str, Any]], end: int) -> list[list[int]]:
    """Return the indices of the droppable messages before ``end``, by turn, oldest first."""
    turns: list[list[int]] = []
    for index in range(end):
        role = messages[index]["role"]
        if role in _INSTRUCTIONS:
            continue
        if role == "user" or not turns:
            turns.append([])
        turns[-1].append(index)
    return turns


def _drop_oldest_turns(
    messages: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    room: int,
) -> tuple[int, ...] | None:
    """Return the indices left after dropping as few of the oldest turns as it takes, or None when it is not enough."""
    total = sum(sizes)
    dropped: set[int] = set()
    for turn in _turns(messages, _protected_from(messages)):
        if total <= room:
            break
        dropped.update(turn)
        total -= sum(sizes[index] for index in turn)
    if total > room:
        return None
    return tuple(index for index in range(len(messages)) if index not in dropped)
