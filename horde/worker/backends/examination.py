"""The questions that a model server is asked before anything is declared of it, in the order in which they build up."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final, TypedDict

from horde_sdk.worker.chat_declaration import ChatToolStrategy

from horde.worker.backends.efforts import EffortMapping
from horde.worker.backends.probes import (
    PROBE_TOKENS,
    THINKING_TOKENS,
    Generate,
    applies_penalty,
    calls_by_template,
    enforces_schema,
    forces_calls,
    honours_seed,
    reads_pictures,
    try_thinking,
)
from horde.worker.backends.traits import Proof, ServerTraits

__all__ = ["Abilities", "examine"]

_EFFORTS: Final = ("medium", "none")
"""The effort that the Horde fills in, and the one that has to turn thinking off."""


class _Asked(TypedDict):
    """With what every question is asked, as jobs will be: under their effort, with room for a thought."""

    effort: str | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a server was found to do; nothing at first.

    Attributes:
        honours_seed: It applies a seed.
        applies_presence_penalty: It applies that penalty.
        applies_frequency_penalty: It applies that penalty.
        effort: How it is told a ``reasoning_effort``; None where none was seen to work.
        thinks: The model thinks when it is told nothing.
        template_opens_thinking: Replies begin within the thinking, since the prompt ends with its tag.
        holds_schema: It holds a reply to a JSON schema.
        tools: How it calls tools.
        seen_tokens: Tokens that a small picture was seen to take at most; None when the model reads none.
    """

    honours_seed: bool = False
    applies_presence_penalty: bool = False
    applies_frequency_penalty: bool = False
    effort: EffortMapping | None = None
    thinks: bool = False
    template_opens_thinking: bool = False
    holds_schema: bool = False
    tools: ChatToolStrategy = ChatToolStrategy.NONE
    seen_tokens: int | None = None

    @property
    def sees(self) -> bool:
        """Whether the model reads pictures."""
        return self.seen_tokens is not None

    @property
    def picture_tokens(self) -> int:
        """Tokens that a small picture takes at most."""
        return self.seen_tokens or 0

    @property
    def writes_grammar(self) -> bool:
        """Whether the worker writes a job's tools into the prompt and a schema."""
        return self.tools is ChatToolStrategy.GRAMMAR

    def findings(self, traits: ServerTraits) -> tuple[str, ...]:
        """Return one sentence for each finding, for the operator.

        Args:
            traits: The kind of server.
        """
        tools = {
            ChatToolStrategy.GRAMMAR: "a forced call came as the grammar had it",
            ChatToolStrategy.TEMPLATE: "the server parsed a call that was asked for, and enforces none",
            ChatToolStrategy.NONE: "no call came",
        }
        return (
            f"seed: {_applied(traits.seed, applied=self.honours_seed)}",
            f"presence penalty: {_applied(traits.presence_penalty, applied=self.applies_presence_penalty)}",
            f"frequency penalty: {_applied(traits.frequency_penalty, applied=self.applies_frequency_penalty)}",
            f"reasoning effort: {self.effort.name if self.effort else 'not seen to work'}",
            f"JSON formats: a schema was {'' if self.holds_schema else 'not '}enforced when tried",
            f"tools: {tools[self.tools]} when tried",
            f"pictures: {'read' if self.sees else 'not read'}",
        )


def _applied(proof: Proof, *, applied: bool) -> str:
    if proof is Proof.KIND:
        return "this kind of server applies it to every model"
    if proof is Proof.NEVER:
        return "this kind of server does not apply it"
    return f"{'' if applied else 'not '}seen to be applied when tried"


async def examine(
    traits: ServerTraits, generate: Generate, *, sees: bool | None, thinks: bool
) -> AsyncGenerator[Abilities]:
    """Ask, and yield what is known after each answer.

    Whoever iterates lets ``generate`` use what was yielded before the next question: a schema is tried under the effort
    that jobs will carry.

    Args:
        traits: The kind of server.
        generate: Generates the reply to a job, by the way that jobs take.
        sees: Whether the server says that the model reads pictures; None when it does not say.
        thinks: False when the model surely never thinks.

    Raises:
        BackendUnavailableError: The server went away.
    """
    found = Abilities(
        honours_seed=traits.seed is Proof.KIND,
        applies_presence_penalty=traits.presence_penalty is Proof.KIND,
        applies_frequency_penalty=traits.frequency_penalty is Proof.KIND,
    )
    if thinks:
        async for tried in _try_efforts(traits, generate, found):
            found = tried
            yield found
    asked = _Asked(
        effort=None if found.effort is None else _EFFORTS[0],
        tokens=THINKING_TOKENS if found.thinks or found.effort else PROBE_TOKENS,
    )
    holds_schema = await enforces_schema(generate, **asked)
    if holds_schema:
        yield replace(found, holds_schema=True, tools=ChatToolStrategy.GRAMMAR)
        calls = await forces_calls(generate, **asked)
        found = replace(found, holds_schema=True, tools=ChatToolStrategy.GRAMMAR if calls else ChatToolStrategy.NONE)
    if found.tools is ChatToolStrategy.NONE:
        yield found
        calls = await calls_by_template(generate, **asked)
        found = replace(found, tools=ChatToolStrategy.TEMPLATE if calls else ChatToolStrategy.NONE)
    yield found
    if traits.pictures is not Proof.NEVER and sees is not False:
        found = replace(found, seen_tokens=await reads_pictures(generate, **asked))
    yield await _try_samplings(traits, generate, found)


async def _try_efforts(traits: ServerTraits, generate: Generate, found: Abilities) -> AsyncGenerator[Abilities]:
    """Find the mapping under which the model thinks at ``medium`` and not at ``none``."""
    natural = await try_thinking(generate, effort=None)
    opened = natural is not None and natural.opened_by_template
    thought = natural is not None and natural.thought
    found = replace(found, thinks=thought, template_opens_thinking=opened)
    yield found
    for mapping in traits.efforts:
        yield replace(found, effort=mapping)
        thinking = await try_thinking(generate, effort=_EFFORTS[0])
        if thinking is None:
            continue  # The server refuses these keys.
        if not thinking.thought or (mapping.closes_thinking and not thinking.answered):
            if not thought:
                break  # The model does not think, whatever it is told.
            continue
        silent = await try_thinking(generate, effort=_EFFORTS[1])
        if silent is not None and silent.answered and not silent.thought:
            yield replace(found, effort=mapping)
            return
    yield found


async def _try_samplings(traits: ServerTraits, generate: Generate, found: Abilities) -> Abilities:
    if traits.seed is Proof.TRIED:
        found = replace(found, honours_seed=await honours_seed(generate))
    if traits.presence_penalty is Proof.TRIED:
        found = replace(found, applies_presence_penalty=await applies_penalty(generate, "presence_penalty"))
    if traits.frequency_penalty is Proof.TRIED:
        found = replace(found, applies_frequency_penalty=await applies_penalty(generate, "frequency_penalty"))
    return found
