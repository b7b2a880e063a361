"""Any server that speaks OpenAI's chat completions, streamed.

Nothing is taken for granted but the two routes ``/models`` and ``/chat/completions``: JSON formats and tools are
declared when a schema and a forced call were seen to be enforced while probing, nothing else is, and what fits is
judged by bytes. Profiles of known servers extend this class.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import aiohttp
import orjson
from horde_sdk.worker.chat_declaration import ChatBackendFacts, ChatFinishReason, ChatJobPayload, ChatToolStrategy

from horde.worker.backends.base import (
    BackendError,
    BackendProfile,
    BackendUnavailableError,
    GenerationEvent,
    GenerationFinished,
    PromptOverflowError,
    TextDelta,
    UnbuildableGrammarError,
)
from horde.worker.backends.event_stream import EventStreamError, EventStreamParser
from horde.worker.backends.probes import enforces_schema, forces_calls
from horde.worker.backends.reply_chunks import ReplyAssembler
from horde.worker.backends.windows import WINDOW_ROUTES, positive
from horde.worker.payloads import JSON_HEADERS, json_payload
from horde.worker.prompt_bound import prompt_token_bound
from horde.worker.tool_grammar import ToolGrammar, involves_tools
from horde.worker.tool_reply import read_tool_reply

__all__ = ["BackendLocation", "OpenAICompatibleBackend", "create_backend_session", "public_model_name"]

_CONNECT_SECONDS: Final = 5.0
_ROUTE_SECONDS: Final = 30.0
"""Longest answer of a route that generates nothing."""

_MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Bound of an answer that is no stream: a model list, a chat template, tokens of a prompt."""

_UNLIMITED: Final = 2**31
"""Prompt limit of a probe, which is short."""

_MAX_MODEL_NAME_CHARACTERS: Final = 100

_END_OF_STREAM: Final = b"[DONE]"

_NOT_SERVING: Final = frozenset({401, 403, 502, 503, 504})
"""A key that no longer opens, a server that loads its model, a proxy without a server behind it."""

_REFUSED_BODY: Final = frozenset({400, 413, 422})

_OVERFLOW_WORDS: Final = (b"exceed_context_size", b"context_length_exceeded", b"maximum context length")
"""How servers say that a prompt does not fit: llama.cpp, OpenAI and those like it, vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLocation:
    """Where a model server is and how it is asked.

    Attributes:
        base_url: Its OpenAI base URL, which usually ends in ``/v1``; no trailing slash.
        api_key: Bearer key, when it wants one; never shown.
        model: The model to ask for; None takes the first one listed.
        stall_seconds: Longest silence within a reply, the reading of the prompt included.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    stall_seconds: float = 120.0


def create_backend_session(location: BackendLocation) -> aiohttp.ClientSession:
    """Return the HTTP session for one model server; whoever asks for it closes it.

    Every call has a connection of its own: one that is kept alive may be closed by the server in the moment it is
    used again, which would cost a job, and a new one costs a fraction of a millisecond. The number of connections
    follows the jobs, which are bounded.
    """
    headers = {"Authorization": f"Bearer {location.api_key}"} if location.api_key else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=location.stall_seconds),
    )


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

    def __init__(self, session: aiohttp.ClientSession, location: BackendLocation) -> None:
        self._session = session
        self._location = location
        self._served_model: str | None = location.model
        self._tools_by_grammar = False
        """Proven by a probe: the server holds a reply to a schema, so that the worker can make it call tools."""

    async def probe(self) -> BackendProfile:
        """Read the model list, then try a schema and a forced call.

        Raises:
            BackendError: The server cannot be reached, or lists no model.
        """
        card = await self._read_model_card()
        name = public_model_name(self._served_model or "")
        enforces, calls = await self._probe_grammar()
        # Last: a server that loads its model when it is asked says only then what it loaded.
        window, told_by = await self._find_window(card)
        return BackendProfile(
            kind="OpenAI-compatible server",
            model_name=name,
            window=window,
            slots=None,
            counts_prompts=False,
            facts=ChatBackendFacts(
                constrains_json_object=enforces,
                constrains_json_schema=enforces,
                faults_on_unbuildable_schema=enforces,
                renders_tools=calls,
                tool_strategy=ChatToolStrategy.GRAMMAR if calls else ChatToolStrategy.NONE,
                serves_tools_with_response_format=calls,
                refuses_prompt_overflow=True,
            ),
            findings=(
                f"serves {name}, {f'{window} tokens of context by {told_by}' if window else 'of unknown context'}",
                "no known kind of server: no seed and no penalty is taken for granted",
                f"JSON formats: a schema was {'' if enforces else 'not '}enforced when tried",
                f"tools: a forced call {'came as the grammar had it' if calls else 'did not come'} when tried",
            ),
        )

    async def generate(self, job: ChatJobPayload, *, prompt_limit: int) -> AsyncGenerator[GenerationEvent]:
        """Generate one reply; see :class:`horde.worker.backends.base.ChatBackend`."""
        body = self._build_body(job)
        if not (self._tools_by_grammar and involves_tools(job)):
            await self._check_prompt(body, prompt_limit)
            async with aclosing(self._complete(body)) as events:
                async for event in events:
                    yield event
            return
        grammar = ToolGrammar(job)
        _put_tools(body, grammar)
        await self._check_prompt(body, prompt_limit)
        async with aclosing(_read_tools(self._complete(body), grammar)) as events:
            async for event in events:
                yield event

    async def _find_window(self, card: Mapping[str, Any]) -> tuple[int | None, str]:
        """Return the tokens of the context and who told them; None when nobody did."""
        listed = positive(card.get("max_model_len"))
        if listed is not None:
            return listed, "its model list"
        root = self._location.base_url.removesuffix("/v1")
        for route in WINDOW_ROUTES:
            try:
                window = route.read(await self._call("GET", root + route.path), self._served_model)
            except BackendError:
                continue
            if window is not None:
                return window, f"a route of {route.server}"
        return None, "nobody"

    async def _probe_grammar(self) -> tuple[bool, bool]:
        """Return whether a schema and a forced call are enforced; jobs with tools are served by the latter from now."""
        generate = partial(self.generate, prompt_limit=_UNLIMITED)
        enforces = await enforces_schema(generate)
        self._tools_by_grammar = enforces
        self._tools_by_grammar = enforces and await forces_calls(generate)
        return enforces, self._tools_by_grammar

    async def _complete(self, body: dict[str, Any]) -> AsyncGenerator[GenerationEvent]:
        """Stream one completion as events."""
        assembler = ReplyAssembler()
        constrained = "response_format" in body or "tools" in body
        async with aclosing(self._stream(body, constrained=constrained)) as stream:
            async for data in stream:
                for event in assembler.feed(data):
                    yield event
        if not assembler.ended:
            raise BackendUnavailableError("The model server ended the stream in the middle of a reply.")
        for event in assembler.finish():
            yield event

    async def _check_prompt(self, body: dict[str, Any], prompt_limit: int) -> None:
        """Refuse a prompt that may not fit, with whatever the worker put into it.

        Raises:
            PromptOverflowError: It may not.
        """
        bound = prompt_token_bound(body["messages"])
        if bound > prompt_limit:
            raise PromptOverflowError(f"The prompt may take {bound} tokens, {prompt_limit} fit.")

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
        return body

    async def _read_model_card(self) -> dict[str, Any]:
        answer = await self._call("GET", self._location.base_url + "/models")
        listed = answer.get("data")
        cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
        named = [card for card in cards if isinstance(card.get("id"), str) and public_model_name(card["id"])]
        wanted = self._location.model
        if wanted is None and not named:
            raise BackendError(f"The server at {self._location.base_url} lists no model.")
        if wanted is None:
            self._served_model = named[0]["id"]
            return named[0]
        for card in named:
            if card["id"] == wanted or public_model_name(card["id"]) == wanted:
                self._served_model = card["id"]
                return card
        ids = ", ".join(public_model_name(card["id"]) for card in named[:8])
        raise BackendError(f"The server at {self._location.base_url} does not list {wanted}; it lists {ids or 'none'}.")

    async def _call(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a route that generates nothing and return the object it answers with.

        Raises:
            UnbuildableGrammarError: The body asks for a format and was refused.
            BackendUnavailableError: No answer, or one of a server that cannot work.
            BackendError: Any other answer than 200 with an object.
        """
        timeout = aiohttp.ClientTimeout(total=_ROUTE_SECONDS, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session.request(
                method,
                url,
                data=None if body is None else json_payload(body),
                headers=JSON_HEADERS,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await _read_bounded(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(self._location.base_url, error) from error
        if response.status != 200:  # noqa: PLR2004 - the one status that answers
            if response.status in _NOT_SERVING:
                raise BackendUnavailableError(f"{url} does not serve at present (HTTP {response.status}).")
            if response.status in _REFUSED_BODY and body is not None and "response_format" in body:
                raise UnbuildableGrammarError(f"The model server refused the format (HTTP {response.status}).")
            raise BackendError(f"{url} answered with HTTP {response.status}.")
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise BackendError(f"{url} did not answer with JSON.") from error
        if not isinstance(answer, dict):
            raise BackendError(f"{url} did not answer with an object.")
        return answer

    async def _stream(self, body: dict[str, Any], *, constrained: bool) -> AsyncGenerator[bytes]:
        """Start a reply and yield the data of its events; the connection is closed however this is left."""
        url = self._location.base_url + "/chat/completions"
        try:
            async with self._session.post(
                url, data=json_payload(body), headers=JSON_HEADERS, allow_redirects=False
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - the one status that answers
                    raise _refusal(response.status, await _read_bounded(response), constrained=constrained)
                async with aclosing(_read_events(response)) as events:
                    async for data in events:
                        yield data
        except aiohttp.ConnectionTimeoutError as error:
            raise _unreachable(self._location.base_url, error) from error
        except TimeoutError as error:
            raise BackendError(
                f"The model server was silent for {self._location.stall_seconds:.0f} seconds."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(self._location.base_url, error) from error
        except EventStreamError as error:
            raise BackendError(str(error)) from error


def _proven_format(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the format to ask for: a JSON object is asked for as a schema, which is what was seen to be enforced."""
    if response_format is None or response_format.get("type") != "json_object":
        return response_format
    return {"type": "json_schema", "json_schema": {"name": "object", "schema": {"type": "object"}}}


def _put_tools(body: dict[str, Any], grammar: ToolGrammar) -> None:
    """Turn a job's tools into a prompt and a format; the server sees no tools of its own."""
    body["messages"] = grammar.messages()
    response_format = grammar.response_format()
    if response_format is not None:
        body["response_format"] = response_format


async def _read_tools(events: AsyncGenerator[GenerationEvent], grammar: ToolGrammar) -> AsyncGenerator[GenerationEvent]:
    """Take the document of a job with tools apart once it is whole; reasoning is passed on as it comes.

    Raises:
        ToolViolationError: It is none that the tools allow.
    """
    if not grammar.has_tools:
        async with aclosing(events):
            async for event in events:
                yield event
        return
    texts: list[str] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
            elif isinstance(event, GenerationFinished):
                cut = event.finish_reason is ChatFinishReason.LENGTH
                reply = await asyncio.to_thread(read_tool_reply, grammar, "".join(texts), cut=cut)
                if reply.content:
                    yield TextDelta(reply.content)
                called = ChatFinishReason.TOOL_CALLS if reply.calls else ChatFinishReason.STOP
                yield replace(event, finish_reason=event.finish_reason if cut else called, tool_calls=reply.calls)
            else:
                yield event


async def _read_events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """Yield the data of each event up to the end of the stream, and close the connection."""
    parser = EventStreamParser()
    try:
        async for chunk in response.content.iter_any():
            for data in parser.feed(chunk):
                if data.strip() == _END_OF_STREAM:
                    return
                yield data
    finally:
        response.close()


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > _MAX_ANSWER_BYTES:
            response.close()
            raise BackendError("The model server answered with more than 8 MiB.")
    return bytes(data)


def _unreachable(base_url: str, error: Exception) -> BackendUnavailableError:
    return BackendUnavailableError(f"The model server at {base_url} cannot be reached ({type(error).__name__}).")


def _refusal(status: int, data: bytes, *, constrained: bool) -> BackendError:
    """Turn an error answer into ours; its text is read and never repeated, since it may quote the prompt."""
    if status in _REFUSED_BODY:
        if any(word in data for word in _OVERFLOW_WORDS):
            return PromptOverflowError("The model server refused the prompt as too long.")
        if constrained:
            return UnbuildableGrammarError(f"The model server refused the format or the tools (HTTP {status}).")
    if status == 404 or status in _NOT_SERVING:  # noqa: PLR2004 - the model is gone
        return BackendUnavailableError(f"The model server does not serve at present (HTTP {status}).")
    return BackendError(f"The model server answered with HTTP {status}.")
