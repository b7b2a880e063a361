"""An upper bound of a prompt's tokens where no tokenizer can be asked. Pure.

A token covers at least one byte of the text, whatever the tokenizer, so bytes bound tokens. The bound is several times
the truth; a worker that goes by it declares a context so much smaller that no job routed to it is refused by it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["MESSAGE_TOKENS", "TEMPLATE_TOKENS", "declarable_context", "prompt_text", "prompt_token_bound"]

TEMPLATE_TOKENS: Final = 256
"""What a chat template may add to the whole prompt: a default system message, dates, markers."""

MESSAGE_TOKENS: Final = 16
"""What a chat template may add to each message."""

_BOUND_PER_ESTIMATED_TOKEN: Final = 6
"""The bound is at most this many times the Horde's estimate (decision U36): four ASCII bytes are estimated as one
token and bounded by four, a message adds four and is bounded by sixteen."""

_LABELS: Final = frozenset({"role", "type"})
"""Keys whose values are covered by the tokens of the message."""


def _strings(value: object) -> Iterator[str]:
    """Yield every text in a message, without recursion: it may be nested as deeply as somebody liked."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, Mapping):
            pending.extend(item for key, item in current.items() if key not in _LABELS)
        elif isinstance(current, Sequence):
            pending.extend(current)


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return every text of the messages, one a line: what is to be counted where a tokenizer takes text alone."""
    return "\n".join(_strings(list(messages)))


def prompt_token_bound(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return a number of tokens that the rendered messages do not pass."""
    text_bytes = sum(len(text.encode(errors="surrogatepass")) for text in _strings(messages))
    return TEMPLATE_TOKENS + MESSAGE_TOKENS * len(messages) + text_bytes


def declarable_context(prompt_tokens: int) -> int:
    """Return the largest prompt, by the Horde's estimate, whose bound surely fits.

    Args:
        prompt_tokens: Tokens that a prompt may take; the result is 0 or less when that is too few to say anything.
    """
    return (prompt_tokens - TEMPLATE_TOKENS) // _BOUND_PER_ESTIMATED_TOKEN
