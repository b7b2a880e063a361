"""The profile of Ollama, by its own chat route: the one like OpenAI's leaves samplers out and cuts prompts."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final

from horde.worker.backends.base import BackendError, BackendUnavailableError, GenerationEvent
from horde.worker.backends.connection import positive
from horde.worker.backends.efforts import OLLAMA_EFFORTS
from horde.worker.backends.ollama_chunks import OllamaReplyAssembler, ollama_messages
from horde.worker.backends.openai_compatible import OpenAICompatibleBackend, ServerState, public_model_name
from horde.worker.backends.traits import Proof, ServerTraits

__all__ = ["OLLAMA", "OllamaBackend"]

OLLAMA: Final = ServerTraits(
    kind="Ollama",
    recognised_by="`/api/version` and `/api/tags` answer, and none of the others owns the model",
    window_by="`/api/ps`, once the model is loaded",
    slots_by="the setting (`OLLAMA_NUM_PARALLEL`)",
    counting_by="an upper bound by bytes: it has no route",
    seed=Proof.KIND,
    presence_penalty=Proof.KIND,
    frequency_penalty=Proof.KIND,
    efforts=OLLAMA_EFFORTS,
)

_OPTIONS: Final = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
"""Ollama's names of what a body asks for."""


class OllamaBackend(OpenAICompatibleBackend):
    """An Ollama server."""

    traits: ClassVar[ServerTraits] = OLLAMA

    async def recognise(self) -> bool:
        """Whether an Ollama answers there.

        Raises:
            BackendUnavailableError: Nothing answers, or a server that cannot work yet.
        """
        try:
            version = await self._server.call("/api/version")
            models = await self._server.call("/api/tags")
        except BackendUnavailableError:
            raise
        except BackendError:
            return False
        return isinstance(version.get("version"), str) and isinstance(models.get("models"), list)

    async def _read_state(self) -> ServerState:
        await self._read_model_card()
        shown = await self._server.call("/api/show", {"model": self._served_model})
        abilities = shown.get("capabilities")
        told = abilities if isinstance(abilities, list) else None
        return ServerState(
            model_name=public_model_name(self._served_model or ""),
            sees=None if told is None else "vision" in told,
            may_think=told is None or "thinking" in told,
        )

    async def _read_window(self) -> int | None:
        """Read the loaded models: the context that one was loaded with is not the longest that it could have."""
        loaded = (await self._server.call("/api/ps")).get("models")
        for card in loaded if isinstance(loaded, list) else ():
            if isinstance(card, Mapping) and self._served_model in {card.get("name"), card.get("model")}:
                return positive(card.get("context_length"))
        return None

    async def _complete(self, body: dict[str, Any], *, starts_inside: bool) -> AsyncGenerator[GenerationEvent]:
        assembler = OllamaReplyAssembler(starts_inside=starts_inside)
        wire = self._to_wire(body)
        stream = self._server.stream_lines("/api/chat", wire, constrained="format" in wire or "tools" in wire)
        async with aclosing(stream):
            async for line in stream:
                for event in assembler.feed(line):
                    yield event
        if not assembler.ended:
            raise BackendUnavailableError("The model server ended the stream in the middle of a reply.")
        for event in assembler.finish():
            yield event

    def _to_wire(self, body: dict[str, Any]) -> dict[str, Any]:
        wire: dict[str, Any] = {
            "model": body["model"],
            "messages": ollama_messages(body["messages"]),
            "stream": True,
            "truncate": False,
            "shift": False,
            "options": {name: body[key] for name, key in _OPTIONS.items() if key in body},
        }
        asked = body.get("response_format")
        if asked is not None:
            wire["format"] = asked.get("json_schema", {}).get("schema")
        return wire | {key: body[key] for key in ("think", "tools") if key in body}
