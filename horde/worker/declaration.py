"""What this worker declares, from what was found and what its operator allows; nothing is ever added (WRK-7). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from horde_sdk.generation_parameters.text.chat_limits import MAX_CHAT_MAX_TOKENS, MIN_CHAT_MAX_TOKENS
from horde_sdk.generation_parameters.text.chat_policy import (
    KNOWN_CHAT_DECLARATIONS,
    ChatFeature,
    ChatGuarantee,
    ChatWorkerLimits,
    parse_chat_declaration,
)
from horde_sdk.worker.chat_declaration import ChatWorkerDeclaration, declare_from_backend

from horde.worker.backends.base import BackendProfile
from horde.worker.prompt_bound import declarable_context

__all__ = ["DeclarationError", "OperatorLimits", "WorkerOffer", "build_offer"]

_DEFAULT_MAX_LENGTH: Final = 4096
"""The Horde's free output allowance on an idle pool."""

_REPLY_SHARE: Final = 4
"""By default a reply may take a quarter of the window: chats carry more history than answer."""


class DeclarationError(Exception):
    """The worker cannot offer anything; the message says what to set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLimits:
    """What the operator set; None where the backend decides.

    Attributes:
        public_model: Name of the model on the Horde.
        threads: Jobs at a time.
        context_length: Tokens of prompt and reply together.
        max_length: Longest reply in tokens.
        exclude: Wire names of features and guarantees to withhold.
    """

    public_model: str | None = None
    threads: int | None = None
    context_length: int | None = None
    max_length: int | None = None
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOffer:
    """What the worker serves, and the bounds it holds itself to.

    Attributes:
        model: Public name of the model.
        threads: Jobs at a time.
        window: Tokens of prompt and reply together.
        declaration: As sent on each pop.
        limits: The limits in it.
    """

    model: str
    threads: int
    window: int
    declaration: ChatWorkerDeclaration
    limits: ChatWorkerLimits

    def prompt_limit(self, max_length: int, max_context_length: int) -> int:
        """Return the tokens that a job's prompt may take so that its whole reply fits behind it.

        Args:
            max_length: The job's longest reply.
            max_context_length: The context that the job's prompt has to fit.
        """
        return min(max_context_length, self.window - max_length)


def build_offer(profile: BackendProfile, operator: OperatorLimits) -> WorkerOffer:
    """Return what can be offered truthfully.

    The largest prompt that the worker takes is declared as ``max_context_length``: the window less the longest reply.

    Raises:
        DeclarationError: The window is unknown or too small, or a withheld name is none.
    """
    window = _window(profile, operator)
    max_length = operator.max_length or min(window // _REPLY_SHARE, _DEFAULT_MAX_LENGTH, MAX_CHAT_MAX_TOKENS)
    largest_prompt = window - max_length - profile.uncounted_tokens
    if not profile.counts_prompts:
        largest_prompt = declarable_context(largest_prompt)
    if max_length < MIN_CHAT_MAX_TOKENS or largest_prompt < 1:
        raise DeclarationError(
            f"A context of {window} tokens leaves no room for a prompt and a reply of {max_length} tokens; "
            "give the model server a larger context, or set HORDE_WORKER_MAX_LENGTH lower.",
        )
    limits = ChatWorkerLimits(max_context_length=largest_prompt, max_length=max_length)
    model = operator.public_model or profile.model_name
    declaration = declare_from_backend(
        profile.facts,
        model_id=model,
        limits=limits,
        prompt_jobs=False,
        exclude=_parse_excluded(operator.exclude),
    )
    slots = profile.slots or 1
    return WorkerOffer(
        model=model,
        threads=min(operator.threads or slots, profile.slots or operator.threads or 1),
        window=window,
        declaration=declaration,
        limits=limits,
    )


def _window(profile: BackendProfile, operator: OperatorLimits) -> int:
    known = [length for length in (profile.window, operator.context_length) if length is not None]
    if not known:
        raise DeclarationError(
            "The model server does not say how long its context is; set HORDE_WORKER_CONTEXT_LENGTH to its tokens.",
        )
    return min(known)


def _parse_excluded(names: Iterable[str]) -> list[ChatFeature | ChatGuarantee]:
    excluded: list[ChatFeature | ChatGuarantee] = []
    for name in names:
        declaration = parse_chat_declaration(name)
        if declaration is None:
            known = ", ".join(sorted(KNOWN_CHAT_DECLARATIONS))
            raise DeclarationError(f"HORDE_WORKER_EXCLUDE names {name}, which is none of: {known}.")
        excluded.append(declaration)
    return excluded
