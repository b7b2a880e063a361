"""The profile of llama.cpp's server: slots, exact prompt counts, every sampler, formats by grammar."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

import aiohttp
from horde_sdk.worker.chat_declaration import ChatJobPayload

from horde.worker.backends.base import BackendError, BackendUnavailableError
from horde.worker.backends.connection import BackendLocation, positive
from horde.worker.backends.efforts import LLAMA_CPP_EFFORTS
from horde.worker.backends.openai_compatible import OpenAICompatibleBackend, ServerState, public_model_name
from horde.worker.backends.traits import Proof, ServerTraits

__all__ = ["LLAMA_CPP", "LlamaCppBackend"]

LLAMA_CPP: Final = ServerTraits(
    kind="llama.cpp server",
    recognised_by="`/props` tells its build, and none of the others owns the model",
    window_by="`/props`, for each slot",
    slots_by="`/props`",
    counting_by="`/v1/chat/completions/input_tokens`, else `/apply-template` and `/tokenize`",
    seed=Proof.KIND,
    presence_penalty=Proof.KIND,
    frequency_penalty=Proof.KIND,
    efforts=LLAMA_CPP_EFFORTS,
)

_RANDOM_SEED: Final = 2**32 - 1
"""llama.cpp's word for: a new seed each time."""

_NEUTRAL_SAMPLERS: Final = {
    "dry_multiplier": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "top_n_sigma": -1.0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
}
"""Samplers that the Horde has no word for. Options of the server's command line never apply to a job."""

_THINKING_WORDS: Final = ("think", "reason", "channel")
"""What a chat template with thinking cannot do without."""

type _Count = Callable[[Mapping[str, Any]], Awaitable[int]]


class LlamaCppBackend(OpenAICompatibleBackend):
    """A llama.cpp server, the bundled one or somebody's own."""

    traits: ClassVar[ServerTraits] = LLAMA_CPP

    def __init__(self, session: aiohttp.ClientSession, location: BackendLocation) -> None:
        super().__init__(session, location)
        self._count: _Count | None = None

    async def recognise(self) -> bool:
        """Whether llama.cpp itself answers there: others copy its ``/props``, not its build.

        Raises:
            BackendUnavailableError: Nothing answers, or a server that cannot work yet.
        """
        try:
            props = await self._server.call("/props")
        except BackendUnavailableError:
            raise
        except BackendError:
            return False
        return "build_info" in props and isinstance(props.get("default_generation_settings"), dict)

    async def _read_state(self) -> ServerState:
        props = await self._server.call("/props")
        card = await self._read_model_card()
        alias = props.get("model_alias")
        settings = props.get("default_generation_settings")
        modalities = props.get("modalities")
        template = props.get("chat_template")
        return ServerState(
            model_name=public_model_name(alias if isinstance(alias, str) and alias else str(card["id"])),
            window=positive(settings.get("n_ctx")) if isinstance(settings, dict) else None,
            slots=positive(props.get("total_slots")),
            sees=isinstance(modalities, dict) and modalities.get("vision") is True,
            may_think=not isinstance(template, str) or any(word in template.lower() for word in _THINKING_WORDS),
        )

    def _build_body(self, job: ChatJobPayload) -> dict[str, Any]:
        body = super()._build_body(job) | _NEUTRAL_SAMPLERS
        body["repeat_penalty"] = body.pop("repetition_penalty")
        body["seed"] = _RANDOM_SEED if job.seed is None else job.seed % _RANDOM_SEED
        body["cache_prompt"] = True
        return body

    async def _count_prompt(self, body: Mapping[str, Any]) -> int | None:
        return None if self._count is None else await self._count(body)

    async def _find_counting(self) -> bool:
        """Find the way to count prompts; without one, bytes have to do."""
        for count in (self._count_in_one_call, self._count_in_two_calls):
            self._count = count
            if await super()._find_counting():
                return True
        self._count = None
        return False

    async def _count_in_one_call(self, body: Mapping[str, Any]) -> int:
        """Return the tokens of a rendered prompt, by the route that renders and counts."""
        answer = await self._server.call_api("/chat/completions/input_tokens", body)
        tokens = answer.get("input_tokens")
        if not isinstance(tokens, int):
            raise BackendError("The model server did not count the prompt.")
        return tokens

    async def _count_in_two_calls(self, body: Mapping[str, Any]) -> int:
        """Return the tokens of a rendered prompt, by a llama.cpp that has no route for both."""
        rendered = await self._server.call("/apply-template", body)
        text = {"content": rendered.get("prompt"), "add_special": True, "parse_special": True}
        tokens = (await self._server.call("/tokenize", text)).get("tokens")
        if not isinstance(tokens, list):
            raise BackendError("The model server did not count the prompt.")
        return len(tokens)
