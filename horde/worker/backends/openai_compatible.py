"""Any server that speaks OpenAI's chat completions, streamed.

Nothing is taken for granted but the two routes ``/models`` and ``/chat/completions``: what is declared was seen while
probing, and what fits is judged by bytes. Profiles of known servers extend this class: they say what their kind does
(:class:`horde.worker.backends.traits.ServerTraits`) and override how it is asked.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import aiohttp
from horde_sdk.worker.chat_declaration import (
    IMAGE_PART_TRANSPORTS,
    ChatBackendFacts,
    ChatJobPayload,
    ChatToolStrategy,
)

from horde.worker.backends.base import (
    BackendError,
    BackendProfile,
    BackendUnavailableError,
    GenerationEvent,
    PromptOverflowError,
)
from horde.worker.backends.connection import BackendLocation, ModelServer, create_backend_session, positive
from horde.worker.backends.efforts import EffortMapping
from horde.worker.backends.examination import Abilities, examine
from horde.worker.backends.reply_chunks import ReplyAssembler
from horde.worker.backends.tools import read_grammar_reply, read_template_reply
from horde.worker.backends.traits import OPENAI_COMPATIBLE, ServerTraits
from horde.worker.pictures import measure_pictures, picture_urls, replace_pictures
from horde.worker.prompt_bound import prompt_token_bound
from horde.worker.tool_grammar import ToolGrammar, involves_tools

__all__ = [
    "BackendLocation",
    "OpenAICompatibleBackend",
    "ServerState",
    "create_backend_session",
    "public_model_name",
]

_MAX_MODEL_NAME_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What a server says of itself and its model.

    Attributes:
        model_name: Public name of the model.
        window: Tokens of prompt and reply together; None when it does not say.
        slots: Replies at the same time; None when it does not say.
        sees: Whether the model reads pictures; None when it does not say.
        may_think: False when the model's template surely has no thinking.
        uncounted_tokens: Tokens that a prompt may take beyond what is counted of it.
    """

    model_name: str
    window: int | None = None
    slots: int | None = None
    sees: bool | None = None
    may_think: bool = True
    uncounted_tokens: int = 0


def public_model_name(name: str) -> str:
    """Return a name fit for the Horde: a path is reduced to its file, the ending ``.gguf`` is dropped."""
    if name.endswith(".gguf"):
        name = name.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    printable = "".join(character for character in name if character.isprintable()).strip()
    return printable[:_MAX_MODEL_NAME_CHARACTERS]


class OpenAICompatibleBackend:
    """A model server of which no more is known than that it speaks OpenAI's chat completions.

    Args:
        session: From :func:`create_backend_session`; not closed here.
        location: Where it is.
    """

    traits: ClassVar[ServerTraits] = OPENAI_COMPATIBLE

    def __init__(self, session: aiohttp.ClientSession, location: BackendLocation) -> None:
        self._server = ModelServer(session, location)
        self._served_model: str | None = location.model
        self._abilities = Abilities()
        self._counts = False
        """The server's tokenizer was seen to count prompts."""

    async def probe(self) -> BackendProfile:
        """Read what the server says of itself, then try what it does.

        Raises:
            BackendError: The server cannot be reached, or lists no model.
        """
        # On a copy: jobs that still run go by what was known when they began.
        trial = copy.copy(self)
        profile = await trial.look()
        vars(self).update(vars(trial))
        return profile

    async def look(self) -> BackendProfile:
        """Find out what serves there, and forget what was known: :meth:`probe` does so on a copy.

        Raises:
            BackendError: The server cannot be reached, or lists no model.
        """
        state = await self._read_state()
        self._counts = await self._find_counting()
        self._abilities = Abilities()
        async for abilities in examine(self.traits, self._generate_unbounded, sees=state.sees, thinks=state.may_think):
            # Each answer is used by the next question, as it will be by the jobs.
            self._abilities = abilities
        # Last: a server that loads its model when it is asked says only then what it loaded.
        window = state.window or await self._read_window()
        slots = f"{state.slots or 'an unknown number of'} slots of {window or 'an unknown number of'} tokens"
        return BackendProfile(
            kind=self.traits.kind,
            model_name=state.model_name,
            window=window,
            slots=state.slots,
            counts_prompts=self._counts,
            uncounted_tokens=state.uncounted_tokens if self._counts else 0,
            facts=self._facts(),
            findings=(
                f"serves {state.model_name} with {slots}",
                *self._abilities.findings(self.traits),
                f"prompts are counted by {'the tokenizer of the server' if self._counts else 'their bytes'}",
            ),
        )

    async def generate(self, job: ChatJobPayload, *, prompt_limit: int) -> AsyncGenerator[GenerationEvent]:
        """Generate one reply; see :class:`horde.worker.backends.base.ChatBackend`."""
        async with aclosing(self._generate(job, prompt_limit)) as events:
            async for event in events:
                yield event

    async def _generate_unbounded(self, job: ChatJobPayload) -> AsyncGenerator[GenerationEvent]:
        """Generate the reply to a question of our own, which is short."""
        async with aclosing(self._generate(job, None)) as events:
            async for event in events:
                yield event

    async def _generate(self, job: ChatJobPayload, prompt_limit: int | None) -> AsyncGenerator[GenerationEvent]:
        body = self._build_body(job)
        grammar = ToolGrammar(job) if self._abilities.writes_grammar and involves_tools(job) else None
        if grammar is not None:
            _put_tools(body, grammar)
        elif involves_tools(job):
            body.update(_template_tools(job))
        if prompt_limit is not None:
            await self._check_prompt(body, prompt_limit)
        await self._check_format(body)
        events = self._complete(body, starts_inside=self._starts_inside_thinking(job))
        if grammar is not None and grammar.has_tools:
            events = read_grammar_reply(events, grammar)
        elif grammar is None and job.tools:
            events = read_template_reply(events, job.tools)
        async with aclosing(events):
            async for event in events:
                yield event

    def _facts(self) -> ChatBackendFacts:
        found = self._abilities
        return ChatBackendFacts(
            honours_seed=found.honours_seed,
            applies_presence_penalty=found.applies_presence_penalty,
            applies_frequency_penalty=found.applies_frequency_penalty,
            constrains_json_object=found.holds_schema,
            constrains_json_schema=found.holds_schema,
            faults_on_unbuildable_schema=found.holds_schema,
            renders_tools=found.tools is not ChatToolStrategy.NONE,
            tool_strategy=found.tools,
            serves_tools_with_response_format=found.tools is ChatToolStrategy.GRAMMAR,
            refuses_prompt_overflow=True,
            reads_images=found.sees,
            image_transports=IMAGE_PART_TRANSPORTS if found.sees else frozenset(),
            applies_reasoning_effort=found.effort is not None,
        )

    async def _read_state(self) -> ServerState:
        card = await self._read_model_card()
        return ServerState(
            model_name=public_model_name(self._served_model or ""),
            window=positive(card.get("max_model_len")),
        )

    async def _read_window(self) -> int | None:
        """Return the tokens of the context from a route that knows them only once the model was asked."""
        return None

    async def _find_counting(self) -> bool:
        """Whether the server's tokenizer counts prompts, once it was tried.

        Raises:
            BackendUnavailableError: The server went away.
        """
        try:
            return await self._count_prompt({"messages": [{"role": "user", "content": "Hi"}]}) is not None
        except BackendUnavailableError:
            raise
        except BackendError:
            return False

    async def _count_prompt(self, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a rendered prompt by the server's tokenizer; None where it has no route for that.

        Raises:
            BackendError: It did not count.
        """
        del body
        return None

    async def _check_prompt(self, body: Mapping[str, Any], prompt_limit: int) -> None:
        """Refuse a prompt that does not fit, with whatever the worker put into it (CTX-11).

        Bytes come first: they bound tokens, so most prompts are known to fit without asking anybody.

        Raises:
            PromptOverflowError: It does not fit.
        """
        messages, pictures = body["messages"], 0
        if urls := picture_urls(messages):
            # Texts are counted by the server, pictures by their size: none of the routes counts both.
            pictures = await asyncio.to_thread(measure_pictures, messages, self._abilities.picture_tokens)
            messages = replace_pictures(messages, [""] * len(urls))
        bound = prompt_token_bound(messages) + pictures
        if bound <= prompt_limit:
            return
        counted = await self._count_prompt({**body, "messages": list(messages)}) if self._counts else None
        if counted is None:
            raise PromptOverflowError(f"The prompt may take {bound} tokens, {prompt_limit} fit.")
        if counted + pictures > prompt_limit:
            raise PromptOverflowError(f"The prompt takes {counted + pictures} tokens, {prompt_limit} fit.")

    async def _check_format(self, body: Mapping[str, Any]) -> None:
        """Refuse a schema that the server would pass over without a word.

        Raises:
            UnbuildableGrammarError: It cannot build a grammar of it.
        """

    async def _complete(self, body: dict[str, Any], *, starts_inside: bool) -> AsyncGenerator[GenerationEvent]:
        """Stream one completion as events."""
        assembler = ReplyAssembler(starts_inside=starts_inside)
        constrained = "response_format" in body or "tools" in body
        stream = self._server.stream_events(self._to_wire(body), constrained=constrained)
        async with aclosing(stream):
            async for data in stream:
                for event in assembler.feed(data):
                    yield event
        if not assembler.ended:
            raise BackendUnavailableError("The model server ended the stream in the middle of a reply.")
        for event in assembler.finish():
            yield event

    def _to_wire(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body in the server's own words, where they are not OpenAI's."""
        return body

    def _build_body(self, job: ChatJobPayload) -> dict[str, Any]:
        """Return the request body; every sampling value is sent, neutral ones too, since a server has defaults."""
        body: dict[str, Any] = {
            "model": self._served_model,
            "messages": [dict(message) for message in job.messages],
            "max_tokens": job.max_length,
            "temperature": job.temperature,
            "top_p": job.top_p,
            "frequency_penalty": job.frequency_penalty,
            "presence_penalty": job.presence_penalty,
            "repetition_penalty": job.rep_pen,
            "top_k": job.top_k,
            "min_p": job.min_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        optional = {
            "stop": list(job.stop_sequence) if job.stop_sequence else None,
            "seed": job.seed,
            "response_format": _proven_format(job.response_format),
        }
        body.update({key: value for key, value in optional.items() if value is not None})
        return body | self._effort_keys(self._abilities.effort, job)

    def _effort_keys(self, effort: EffortMapping | None, job: ChatJobPayload) -> dict[str, Any]:
        """Return how this job's effort is told; nothing where efforts were not seen to work (RSN-11)."""
        if effort is None or job.reasoning_effort is None:
            return {}
        return effort.keys(job.reasoning_effort, job.max_length)

    def _starts_inside_thinking(self, job: ChatJobPayload) -> bool:
        """Whether the template opens the thinking, so that the reply begins within it."""
        return self._abilities.template_opens_thinking and job.reasoning_effort != "none"

    async def _read_model_card(self) -> dict[str, Any]:
        answer = await self._server.call_api("/models")
        listed = answer.get("data")
        cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
        named = [card for card in cards if isinstance(card.get("id"), str) and public_model_name(card["id"])]
        location = self._server.location
        wanted = location.model
        if wanted is None and not named:
            raise BackendError(f"The server at {location.base_url} lists no model.")
        if wanted is None:
            self._served_model = named[0]["id"]
            return named[0]
        for card in named:
            if card["id"] == wanted or public_model_name(card["id"]) == wanted:
                self._served_model = card["id"]
                return card
        ids = ", ".join(public_model_name(card["id"]) for card in named[:8])
        raise BackendError(f"The server at {location.base_url} does not list {wanted}; it lists {ids or 'none'}.")


def _proven_format(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the format to ask for: a JSON object is asked for as a schema, which is what was seen to be enforced."""
    if response_format is None or response_format.get("type") != "json_object":
        return response_format
    return {"type": "json_schema", "json_schema": {"name": "object", "schema": {"type": "object"}}}


def _put_tools(body: dict[str, Any], grammar: ToolGrammar) -> None:
    """Turn a job's tools into a prompt and a format; the server sees no tools of its own."""
    body["messages"] = grammar.messages()
    response_format = _proven_format(grammar.response_format())
    if response_format is not None:
        body["response_format"] = response_format


def _template_tools(job: ChatJobPayload) -> dict[str, Any]:
    """Return a job's tools for a server that renders them by the model's template and parses its calls."""
    keys = {
        "tools": list(job.tools) if job.tools else None,
        "tool_choice": job.tool_choice if job.tools else None,
        "parallel_tool_calls": job.parallel_tool_calls if job.tools else None,
    }
    return {key: value for key, value in keys.items() if value is not None}
