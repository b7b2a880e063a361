"""Moderation of prompts by the operator's patterns: bounded in time, off where there is no file (NAT-17).

:mod:`horde.native.moderation_service` asks a service instead, or besides.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

import orjson
import regex
from loguru import logger

__all__ = ["ModerationUnavailableError", "Moderator", "PromptFilter", "load_patterns", "prompt_texts"]

_MAX_FILE_BYTES: Final = 1024 * 1024


class ModerationUnavailableError(Exception):
    """A prompt could not be looked at, and the operator lets none through that was not."""


class Moderator(Protocol):
    """Says which prompts are refused."""

    async def refuses(self, texts: Sequence[str]) -> bool:
        """Say whether a prompt of these texts is refused.

        Raises:
            ModerationUnavailableError: It could not be looked at, and such prompts are not let through.
        """


def load_patterns(path: Path) -> tuple[regex.Pattern[str], ...]:
    """Return the patterns of a file: one a line, case ignored; empty lines and those that begin with # are left out.

    Raises:
        ValueError: The file cannot be read, or a line is no pattern; the message names the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file cannot be read ({type(error).__name__})") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"the file is larger than {_MAX_FILE_BYTES} bytes")
    patterns = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            patterns.append(regex.compile(text, regex.IGNORECASE))
        except regex.error as error:
            raise ValueError(f"line {number} is no regular expression ({error})") from None
    return tuple(patterns)


class PromptFilter:
    """Says which prompts are refused.

    Args:
        patterns: A prompt that any of these is found in is refused.
        seconds: Longest time one prompt may take.
        fails_open: Whether a prompt that took longer is let through; else it is refused.
    """

    def __init__(self, patterns: Sequence[regex.Pattern[str]], *, seconds: float, fails_open: bool) -> None:
        self._patterns = tuple(patterns)
        self._seconds = seconds
        self._fails_open = fails_open

    async def refuses(self, texts: Sequence[str]) -> bool:
        """Say whether a prompt of these texts is refused; looked at in a thread, without a copy of them in any log."""
        if not self._patterns:
            return False
        try:
            return await asyncio.to_thread(self._search, texts)
        except TimeoutError:
            logger.warning("Moderation of a prompt took longer than {} s", self._seconds)
            return not self._fails_open

    def _search(self, texts: Sequence[str]) -> bool:
        deadline = monotonic() + self._seconds
        for text in texts:
            for pattern in self._patterns:
                left = deadline - monotonic()
                if left <= 0:
                    raise TimeoutError
                # Concurrent: the interpreter's lock is released while it searches, so that the loop gets its turns.
                if pattern.search(text, concurrent=True, timeout=left):
                    return True
        return False


def prompt_texts(chat: Mapping[str, Any]) -> Iterator[str]:
    """Return every text of a request that a model is shown: messages, calls and names in them, tools, schemas.

    Args:
        chat: The chat keys of a submit, validated.
    """
    for message in chat["messages"]:
        yield from _message_texts(message)
    for tool in chat.get("tools") or ():
        function = tool["function"]
        yield from (function[key] for key in ("name", "description") if function.get(key))
        if function.get("parameters"):
            yield orjson.dumps(function["parameters"]).decode()
    if response_format := chat.get("response_format"):
        yield orjson.dumps(response_format).decode()


def _message_texts(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part.get("text"), str))
    yield from (value for key in ("name", "reasoning_content", "refusal") if isinstance(value := message.get(key), str))
    for call in message.get("tool_calls") or ():
        yield from (call["function"]["name"], call["function"]["arguments"])
