"""The checks of a submit, in their documented order; each is one function that refuses or leaves its finding.

Key and claim come first (:mod:`horde.native.queue.submit`): a copy of a request that is there already is answered
before anything is checked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from horde_sdk.generation_parameters.text.chat_policy import ChatRequirements, chat_request_requirements

from horde.chat_contract import (
    ContractViolation,
    estimate_prompt_tokens,
    find_contract_violation,
    find_native_violation,
    kudos_cap_excess_message,
    unknown_model_message,
)
from horde.native.conformance import find_schema_fault
from horde.native.context import ContextFit, ContextFitError, default_context_length, fit_context, lower_length
from horde.native.db import reads
from horde.native.eligibility import Fields
from horde.native.errors import RefusalError, ReturnCode
from horde.native.images.references import referenced_images
from horde.native.kudos import free_output_allowance, model_multiplier, price_cents, to_kudos
from horde.native.moderation import ModerationUnavailableError, prompt_texts
from horde.native.payload import count_images, narrow_tools
from horde.native.state import NativeState
from horde.native.users import User
from horde.native.wire import SubmitBody, parse_body

__all__ = ["SUBMIT_CHECKS", "Check", "Draft", "Prospect"]

_SCHEMA_SECONDS: Final = 5.0
"""Longest time the schemas of a request may take to compile."""

_SWITCH_SECONDS: Final = 60
"""When a client may look again whether what was switched off is on."""

_CHAT_KEYS: Final = ("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format")


@dataclass(frozen=True, slots=True)
class Prospect:
    """What the Horde can say of one listed model.

    Attributes:
        model: Its name.
        multiplier: Factor of its price.
        workers: Online chat workers.
        threads: Threads of those that declare what the request needs.
        max_length: Largest reply one of them declares, tokens; None when none is online.
        max_context_length: Largest prompt one of them declares, tokens; None when none is online.
    """

    model: str
    multiplier: float
    workers: int
    threads: int
    max_length: int | None
    max_context_length: int | None


@dataclass(slots=True)
class Draft:
    """A submit on its way through the checks; each check fills in what it found.

    Attributes:
        raw: The decoded body; its parts are forwarded as the client wrote them.
        user: Who submits.
        body: The validated body.
        chat: The keys the shared rules read, null left out.
        params: The request's params, null left out.
        narrowed: Tool keys and response format as the worker receives them.
        prospects: What is known of each listed model, in the request's order.
        messages: The messages that are left after fitting.
        image_count: Images in them.
        pictures: Those images as they will be stored, by the id their parts refer to.
        requirements: What a worker has to declare.
        max_length: Reply length after lowering, tokens.
        max_context_length: Context length after fitting, tokens.
        adjustments: What was changed, in order.
        estimate: Price of a full reply of the first model, hundredths of a kudos.
        hold: What is set aside upfront, hundredths of a kudos.
        allowance: The free output allowance, tokens.
    """

    raw: Mapping[str, Any]
    user: User
    body: SubmitBody = field(init=False)
    chat: dict[str, Any] = field(init=False)
    params: dict[str, Any] = field(init=False)
    narrowed: dict[str, Any] = field(init=False)
    prospects: list[Prospect] = field(init=False)
    messages: Sequence[Mapping[str, Any]] = field(init=False)
    image_count: int = 0
    pictures: dict[UUID, bytes] = field(default_factory=dict)
    requirements: ChatRequirements = field(init=False)
    max_length: int = 0
    max_context_length: int = 0
    adjustments: list[Mapping[str, Any]] = field(default_factory=list)
    estimate: int = 0
    hold: int = 0
    allowance: int = 0

    @property
    def models(self) -> list[str]:
        """The listed models, each once."""
        return list(dict.fromkeys(self.body.models))

    def largest(self, limit: str) -> int | None:
        """Return the largest declared value of a limit over the listed models (decision U62), None when none is."""
        declared = [value for prospect in self.prospects if (value := getattr(prospect, limit)) is not None]
        return max(declared, default=None)

    def derive_requirements(self, messages: Sequence[Mapping[str, Any]]) -> ChatRequirements:
        """Return what a worker has to declare to serve these messages."""
        return chat_request_requirements(
            {**self.params, **self.chat, "messages": messages, "horde": {"conformance": self.body.conformance}},
        )


Check = Callable[[NativeState, Draft], Awaitable[None]]
"""A check; raises a refusal, or leaves its finding on the draft."""


async def check_shape(_state: NativeState, draft: Draft) -> None:
    """The body is of the documented shape; null counts as omitted."""
    draft.body = parse_body(SubmitBody, draft.raw)
    draft.chat = {key: draft.raw[key] for key in _CHAT_KEYS if draft.raw.get(key) is not None}
    draft.params = {key: value for key, value in (draft.raw.get("params") or {}).items() if value is not None}
    draft.narrowed = narrow_tools(draft.chat)


async def check_contract(_state: NativeState, draft: Draft) -> None:
    """The rules that front and Horde share hold, and those of this route."""
    _refuse(find_contract_violation(draft.chat, openai_guards=draft.body.openai_guards))
    _refuse(find_native_violation(draft.chat))


async def check_schemas(_state: NativeState, draft: Draft) -> None:
    """The client's schemas compile, without reading anything outside themselves."""
    if "tools" not in draft.chat and "response_format" not in draft.chat:
        return
    try:
        async with asyncio.timeout(_SCHEMA_SECONDS):
            fault = await asyncio.to_thread(find_schema_fault, draft.chat)
    except TimeoutError:
        raise RefusalError(
            ReturnCode.UNSUPPORTED_CHAT_PARAMETER,
            "'tools' and 'response_format' hold schemas that take too long to compile.",
        ) from None
    _refuse(fault)


async def moderate(state: NativeState, draft: Draft) -> None:
    """The operator's filter and service find nothing in what the model would be shown (NAT-17)."""
    if not state.moderators:
        return
    texts = list(prompt_texts(draft.chat))
    try:
        for moderator in state.moderators:
            if await moderator.refuses(texts):
                raise RefusalError(ReturnCode.CORRUPT_PROMPT)
    except ModerationUnavailableError:
        raise RefusalError(
            ReturnCode.CHAT_ADMISSION_DISABLED,
            "This Horde takes no requests that it cannot moderate, and could not moderate this one.",
            headers={"Retry-After": str(_SWITCH_SECONDS)},
        ) from None


def _refuse(violation: ContractViolation | None) -> None:
    if violation is not None:
        raise RefusalError(ReturnCode(violation.code), violation.message)


async def check_known_models(state: NativeState, draft: Draft) -> None:
    """Every listed model is known; what online workers declare for it is read here, once for all checks."""
    needed = sorted(draft.derive_requirements(draft.chat["messages"]).declarations)
    rows = await state.pool.fetch(reads.READ_PROSPECTS, draft.models, needed)
    known = {row["model"] for row in rows if row["known"]}
    for index, model in enumerate(draft.body.models):
        if model not in known:
            message = unknown_model_message(model, f"models[{index}]")
            raise RefusalError(ReturnCode.UNKNOWN_CHAT_MODEL, message)
    _refuse_switched_off(rows)
    draft.prospects = [
        Prospect(
            row["model"],
            model_multiplier(row["model"], row["parameters_billions"]),
            row["workers"],
            row["threads"],
            row["max_length"],
            row["max_context_length"],
        )
        for row in rows
    ]


def _refuse_switched_off(rows: Sequence[Fields]) -> None:
    """Refuse what an administrator has switched off: the whole Horde, chat requests, or a model (NAT-16)."""
    later = {"Retry-After": str(_SWITCH_SECONDS)}
    for row in rows:
        if row["maintenance"]:
            raise RefusalError(ReturnCode.MAINTENANCE_MODE, row["maintenance_message"], headers=later)
        if not row["horde_admits"]:
            raise RefusalError(ReturnCode.CHAT_ADMISSION_DISABLED, headers=later)
        if not row["admits"]:
            closed = f"This Horde takes no requests for the model '{row['model'][:128]}' at present."
            raise RefusalError(ReturnCode.CHAT_ADMISSION_DISABLED, closed, headers=later)


async def check_online_workers(_state: NativeState, draft: Draft) -> None:
    """An online chat worker serves at least one of the models (decision U27)."""
    if not any(prospect.workers for prospect in draft.prospects):
        served = f"the model '{draft.models[0][:128]}'" if len(draft.models) == 1 else "any of the models asked for"
        raise RefusalError(
            ReturnCode.NO_ONLINE_CHAT_WORKER,
            f"No online worker serves {served} at present.",
            headers={"Retry-After": "30"},
        )


async def check_images(state: NativeState, draft: Draft) -> None:
    """Every image can be had, is a picture within the limits, and there is a place for it; nothing is stored yet."""
    messages = draft.chat["messages"]
    if not count_images(messages):
        return
    if state.images is None:
        raise RefusalError(ReturnCode.CHAT_IMAGE_STORAGE_UNAVAILABLE)
    if not draft.body.dry_run:
        draft.chat["messages"], draft.pictures = await state.images.take_in(messages)


async def fit_messages(_state: NativeState, draft: Draft) -> None:
    """The messages fit the context, or are made to (CTX-1 to CTX-5); requirements follow those that are left."""
    messages: list[Mapping[str, Any]] = draft.chat["messages"]
    largest = draft.largest("max_context_length")
    asked = draft.body.params.max_context_length or default_context_length(largest)
    try:
        fitted = fit_context(
            messages,
            [estimate_prompt_tokens([message]) for message in messages],
            fixed_tokens=estimate_prompt_tokens([], **_spec(draft.narrowed)),
            context_length=asked,
            largest_declared=largest,
            mode=ContextFit(draft.body.context_fit),
        )
    except ContextFitError as error:
        raise RefusalError(ReturnCode.PROMPT_EXCEEDS_CONTEXT, str(error)) from None
    draft.messages = [messages[index] for index in fitted.kept]
    draft.image_count = count_images(draft.messages)
    if draft.pictures:
        draft.pictures = {image: draft.pictures[image] for image in referenced_images(draft.messages)}
    draft.requirements = draft.derive_requirements(draft.messages)
    draft.max_context_length = fitted.context_length
    draft.adjustments.extend(fitted.adjustments)


def _spec(narrowed: Mapping[str, Any]) -> dict[str, Any]:
    return {key: narrowed.get(key) for key in ("tools", "tool_choice", "response_format")}


async def lower_max_length(_state: NativeState, draft: Draft) -> None:
    """A reply longer than any online worker of the models writes is lowered to what one does (CTX-7, CTX-8)."""
    draft.max_length, adjustment = lower_length(draft.body.params.max_length, draft.largest("max_length"))
    if adjustment is not None:
        draft.adjustments.append(adjustment)


async def check_kudos_cap(_state: NativeState, draft: Draft) -> None:
    """The estimate is within the request's own cap (KUD-2, KUD-8); it is the first listed model's (KUD-9)."""
    draft.estimate = price_cents(draft.max_length, draft.prospects[0].multiplier, draft.image_count)
    cap = draft.body.max_kudos
    if cap is not None and draft.estimate > cap * 100:
        message = kudos_cap_excess_message(to_kudos(draft.estimate), cap)
        raise RefusalError(ReturnCode.CHAT_KUDOS_CAP_EXCEEDED, message)


async def check_allowance(state: NativeState, draft: Draft) -> None:
    """Above the free output allowance the dearest model's price is set aside (KUD-10, KUD-11).

    Whether the balance covers it is decided by the transaction that writes the request, never before.
    """
    jobs = state.queue.view.jobs(draft.models)
    draft.allowance = free_output_allowance(jobs, sum(prospect.threads for prospect in draft.prospects))
    if draft.max_length <= draft.allowance:
        return
    dearest = max(prospect.multiplier for prospect in draft.prospects)
    draft.hold = price_cents(draft.max_length, dearest, draft.image_count)
    if draft.user.is_anonymous:
        raise kudos_upfront(draft)


def kudos_upfront(draft: Draft) -> RefusalError:
    """Return the refusal of a request whose price its user cannot set aside; it states the allowance (KUD-12)."""
    return RefusalError(
        ReturnCode.KUDOS_UPFRONT,
        f"A reply of {draft.max_length} tokens is over the free output allowance of {draft.allowance} tokens at "
        f"present, and its price of {to_kudos(draft.hold):.2f} kudos is not covered. Ask for at most {draft.allowance} "
        "tokens, or use a key with enough kudos.",
    )


SUBMIT_CHECKS: Final[tuple[Check, ...]] = (
    check_shape,
    check_contract,
    check_schemas,
    moderate,
    check_known_models,
    check_online_workers,
    check_images,
    fit_messages,
    lower_max_length,
    check_kudos_cap,
    check_allowance,
)
"""The order of the checks."""
