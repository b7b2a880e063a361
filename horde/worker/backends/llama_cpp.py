"""The profile of llama.cpp's server: slots, exact prompt counts, every sampler, formats by grammar.

What it declares beyond the model list: the seed and both penalties, which llama.cpp applies to any model, and JSON
formats and tools when a schema and a forced call were seen to be enforced while probing.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
from horde_sdk.worker.chat_declaration import ChatBackendFacts, ChatJobPayload, ChatToolStrategy

from horde.worker.backends.base import (
    BackendError,
    BackendProfile,
    BackendUnavailableError,
    PromptOverflowError,
)
from horde.worker.backends.openai_compatible import BackendLocation, OpenAICompatibleBackend, public_model_name
from horde.worker.backends.windows import positive

__all__ = ["LlamaCppBackend"]

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

type _Count = Callable[[dict[str, Any]], Awaitable[int]]


class LlamaCppBackend(OpenAICompatibleBackend):
    """A llama.cpp server, the bundled one or somebody's own."""

    def __init__(self, session: aiohttp.ClientSession, location: BackendLocation) -> None:
        super().__init__(session, location)
        self._root_url = location.base_url.removesuffix("/v1")
        self._count: _Count | None = self._count_in_one_call

    async def recognise(self) -> bool:
        """Whether a llama.cpp server answers there.

        Raises:
            BackendUnavailableError: Nothing answers, or a server that cannot work yet.
        """
        try:
            return "default_generation_settings" in await self._call("GET", self._root_url + "/props")
        except BackendUnavailableError:
            raise
        except BackendError:
            return False

    async def probe(self) -> BackendProfile:
        """Read ``/props`` and the model list, then count a prompt and try a schema.

        Raises:
            BackendError: The server cannot be reached, or lists no model.
        """
        props = await self._call("GET", self._root_url + "/props")
        card = await self._read_model_card()
        alias = props.get("model_alias")
        name = public_model_name(alias if isinstance(alias, str) and alias else str(card["id"]))
        settings = props.get("default_generation_settings")
        window = positive(settings.get("n_ctx")) if isinstance(settings, dict) else None
        slots = positive(props.get("total_slots"))
        counts = await self._probe_counting()
        enforces, calls = await self._probe_grammar()
        return BackendProfile(
            kind="llama.cpp server",
            model_name=name,
            window=window,
            slots=slots,
            counts_prompts=counts,
            facts=ChatBackendFacts(
                honours_seed=True,
                applies_presence_penalty=True,
                applies_frequency_penalty=True,
                constrains_json_object=enforces,
                constrains_json_schema=enforces,
                faults_on_unbuildable_schema=enforces,
                renders_tools=calls,
                tool_strategy=ChatToolStrategy.GRAMMAR if calls else ChatToolStrategy.NONE,
                serves_tools_with_response_format=calls,
                refuses_prompt_overflow=True,
            ),
            findings=(
                f"serves {name} with {slots} slots of {window} tokens",
                "seed and penalties: llama.cpp applies them to every model",
                f"JSON formats: a schema was {'' if enforces else 'not '}enforced when tried",
                f"tools: a forced call {'came as the grammar had it' if calls else 'did not come'} when tried",
                f"prompts are counted by {'the tokenizer of the server' if counts else 'their bytes'}",
            ),
        )

    async def _check_prompt(self, body: dict[str, Any], prompt_limit: int) -> None:
        if self._count is None:
            await super()._check_prompt(body, prompt_limit)
            return
        tokens = await self._count(body)
        if tokens > prompt_limit:
            raise PromptOverflowError(f"The prompt takes {tokens} tokens, {prompt_limit} fit.")

    def _build_body(self, job: ChatJobPayload) -> dict[str, Any]:
        body = super()._build_body(job) | _NEUTRAL_SAMPLERS
        body["repeat_penalty"] = body.pop("repetition_penalty")
        body["seed"] = _RANDOM_SEED if job.seed is None else job.seed % _RANDOM_SEED
        body["cache_prompt"] = True
        return body

    async def _count_in_one_call(self, body: dict[str, Any]) -> int:
        """Return the tokens of a rendered prompt, by the route that renders and counts."""
        answer = await self._call("POST", self._location.base_url + "/chat/completions/input_tokens", body)
        tokens = answer.get("input_tokens")
        if not isinstance(tokens, int):
            raise BackendError("The model server did not count the prompt.")
        return tokens

    async def _count_in_two_calls(self, body: dict[str, Any]) -> int:
        """Return the tokens of a rendered prompt, by a llama.cpp that has no route for both."""
        rendered = await self._call("POST", self._root_url + "/apply-template", body)
        text = {"content": rendered.get("prompt"), "add_special": True, "parse_special": True}
        tokens = (await self._call("POST", self._root_url + "/tokenize", text)).get("tokens")
        if not isinstance(tokens, list):
            raise BackendError("The model server did not count the prompt.")
        return len(tokens)

    async def _probe_counting(self) -> bool:
        """Find the way to count prompts; without one, bytes have to do."""
        for count in (self._count_in_one_call, self._count_in_two_calls):
            try:
                await count({"messages": [{"role": "user", "content": "Hi"}]})
            except BackendUnavailableError:
                raise
            except BackendError:
                continue
            self._count = count
            return True
        self._count = None
        return False
