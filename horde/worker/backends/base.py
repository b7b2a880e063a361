"""What the worker asks of a model server, whatever its kind.

Errors::

    BackendError                 the reply cannot be made; carries the SDK's fault reason
    ├── BackendUnavailableError  the server cannot be reached or failed by itself: stop popping until it is back
    ├── PromptOverflowError      the rendered prompt does not fit
    └── UnbuildableGrammarError  the schema or tool choice cannot be enforced

Messages are for the operator's log; they never hold a prompt, a reply or a key.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from horde_sdk.worker.chat_declaration import (
    ChatBackendFacts,
    ChatFaultReason,
    ChatFinishReason,
    ChatJobPayload,
    ChatUsage,
)

__all__ = [
    "BackendError",
    "BackendProfile",
    "BackendUnavailableError",
    "ChatBackend",
    "GenerationEvent",
    "GenerationFinished",
    "PromptOverflowError",
    "ReasoningDelta",
    "TextDelta",
    "ToolCall",
    "UnbuildableGrammarError",
]


class BackendError(Exception):
    """The backend failed while generating."""

    fault_reason: ClassVar[ChatFaultReason] = ChatFaultReason.GENERATION_ERROR


class BackendUnavailableError(BackendError):
    """The backend cannot be reached, or answers that it cannot work."""


class PromptOverflowError(BackendError):
    """The rendered messages do not fit the context."""

    fault_reason = ChatFaultReason.PROMPT_OVERFLOW


class UnbuildableGrammarError(BackendError):
    """The backend cannot build the grammar that the request needs."""

    fault_reason = ChatFaultReason.UNBUILDABLE_GRAMMAR


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the reply's content; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made.

    Attributes:
        id: As the backend minted it.
        name: The function's name.
        arguments: A JSON text (WRK-8).
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFinished:
    """The end of a reply; always the last event, and the only one of its kind.

    Attributes:
        finish_reason: Why it ended, in the Horde's words.
        native_finish_reason: The backend's own word, at most 32 characters (WRK-8).
        usage: The tokens that the backend counted.
        tool_calls: The calls that the model made.
    """

    finish_reason: ChatFinishReason
    native_finish_reason: str | None = None
    usage: ChatUsage = field(default_factory=ChatUsage)
    tool_calls: tuple[ToolCall, ...] = ()


type GenerationEvent = TextDelta | ReasoningDelta | GenerationFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendProfile:
    """What a model server was found to be.

    Attributes:
        kind: The server's kind, for people.
        model_name: Public name of the model.
        window: Tokens of prompt and reply together that one reply may take; None when the server does not say.
        slots: Replies generated at the same time; None when the server does not say.
        counts_prompts: The server's tokenizer counts prompts, so that what fits is known exactly. Otherwise the
            worker goes by the bytes of the messages, of which a token takes at least one.
        uncounted_tokens: Tokens that a prompt may take beyond what is counted of it: markers of a template that the
            server does not count. They are kept free.
        facts: What the server does, in the SDK's terms.
        findings: One sentence each on what was found and how, for the operator.
    """

    kind: str
    model_name: str
    window: int | None
    slots: int | None
    counts_prompts: bool
    facts: ChatBackendFacts
    uncounted_tokens: int = 0
    findings: tuple[str, ...] = ()


class ChatBackend(Protocol):
    """A model server as the worker uses it."""

    async def probe(self) -> BackendProfile:
        """Find out what serves there and what it really does.

        Raises:
            BackendError: The server cannot be reached, or is none that the worker understands.
        """
        ...

    def generate(self, job: ChatJobPayload, *, prompt_limit: int) -> AsyncGenerator[GenerationEvent]:
        """Generate one reply.

        Closing the generator, at any point, closes the connection, which is how a model server learns to stop.

        Args:
            job: The job, with sampling values that are all applied (WRK-6).
            prompt_limit: Tokens that the rendered prompt may take.

        Yields:
            Deltas, then one :class:`GenerationFinished`.

        Raises:
            BackendError: With the reason for the fault.
        """
        ...
