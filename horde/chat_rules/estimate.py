"""The one token estimate of front and Horde (decision U36); neither runs a tokenizer.

A token per non-ASCII UTF-8 byte, one per four ASCII bytes rounded up, four a message, the tool spec, 1,024 an image.
It errs high for English and is about right for scripts whose characters take a token or more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

__all__ = ["IMAGE_TOKENS", "MESSAGE_TOKENS", "estimate_prompt_tokens", "estimate_text_tokens", "iter_message_texts"]

MESSAGE_TOKENS: Final = 4
"""What a chat template adds to each message."""

IMAGE_TOKENS: Final = 1024
"""A picture, whatever its size."""

_ASCII_BYTES: Final = bytes(range(128))
_ASCII_BYTES_PER_TOKEN: Final = 4


def _estimate_bytes(data: bytes) -> int:
    wide = 0 if data.isascii() else len(data.translate(None, _ASCII_BYTES))
    return wide + -(-(len(data) - wide) // _ASCII_BYTES_PER_TOKEN)


def estimate_text_tokens(text: str) -> int:
    """Return the estimated tokens of one text; 0 for an empty one."""
    return _estimate_bytes(text.encode())


def iter_message_texts(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text of a message that reaches the prompt: content, text parts, names and arguments of tool calls.

    Args:
        message: One entry of ``messages``, validated.
    """
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if part.get("type") == "text":
                yield part["text"]
    for call in message.get("tool_calls") or ():
        yield call["function"]["name"]
        yield call["function"]["arguments"]


def _count_images(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    if not isinstance(content, list):
        return 0
    return sum(part.get("type") == "image_url" for part in content)


def estimate_prompt_tokens(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None = None,
    tool_choice: object = None,
    response_format: Mapping[str, Any] | None = None,
) -> int:
    """Return the estimated tokens of a prompt.

    Args:
        messages: The conversation, validated.
        tools: The tools offered, if any.
        tool_choice: The tool choice, if any.
        response_format: The response format, if any.
    """
    total = 0
    for message in messages:
        total += MESSAGE_TOKENS + IMAGE_TOKENS * _count_images(message)
        total += sum(_estimate_bytes(text.encode()) for text in iter_message_texts(message))
    spec = {"tools": tools, "tool_choice": tool_choice, "response_format": response_format}
    given = {key: value for key, value in spec.items() if value}
    return total + (_estimate_bytes(orjson.dumps(given)) if given else 0)
