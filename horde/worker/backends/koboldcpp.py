"""The profile of KoboldCpp: one reply at a time, prompts cut to its window, formats by a grammar it may lack."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from horde.worker.backends.base import BackendError, UnbuildableGrammarError
from horde.worker.backends.connection import positive
from horde.worker.backends.efforts import KOBOLDCPP_EFFORTS
from horde.worker.backends.openai_compatible import OpenAICompatibleBackend, ServerState, public_model_name
from horde.worker.backends.traits import Proof, ServerTraits
from horde.worker.prompt_bound import MESSAGE_TOKENS, TEMPLATE_TOKENS, prompt_text

__all__ = ["KOBOLDCPP", "KoboldCppBackend"]

KOBOLDCPP: Final = ServerTraits(
    kind="KoboldCpp",
    recognised_by="`koboldcpp` owns its model",
    window_by="`/api/extra/true_max_context_length`",
    slots_by="one: it generates one reply after the other",
    counting_by="`/api/extra/tokencount` for the texts, and room for the template",
    seed=Proof.KIND,
    presence_penalty=Proof.KIND,
    frequency_penalty=Proof.NEVER,
    efforts=KOBOLDCPP_EFFORTS,
)


class KoboldCppBackend(OpenAICompatibleBackend):
    """A KoboldCpp server.

    It cuts a prompt that does not fit at its start, and passes over a schema of which it cannot make a grammar, both
    without a word: the worker counts, and asks for the grammar, before it sends a job.
    """

    traits: ClassVar[ServerTraits] = KOBOLDCPP

    async def _read_state(self) -> ServerState:
        card = await self._read_model_card()
        window = await self._server.call("/api/extra/true_max_context_length")
        abilities = await self._server.call("/api/extra/version")
        return ServerState(
            model_name=public_model_name(str(card["id"]).removeprefix("koboldcpp/")),
            window=positive(window.get("value")),
            slots=1,
            sees=abilities.get("vision") is True,
            uncounted_tokens=TEMPLATE_TOKENS,
        )

    async def _count_prompt(self, body: Mapping[str, Any]) -> int | None:
        messages = body["messages"]
        asked = {"prompt": prompt_text(messages), "special": True}
        tokens = positive((await self._server.call("/api/extra/tokencount", asked)).get("value"))
        if tokens is None:
            raise BackendError("The model server did not count the prompt.")
        return TEMPLATE_TOKENS + MESSAGE_TOKENS * len(messages) + tokens

    async def _check_format(self, body: Mapping[str, Any]) -> None:
        asked = body.get("response_format")
        if asked is None:
            return
        schema = asked.get("json_schema", {}).get("schema")
        built = await self._server.call("/api/extra/json_to_grammar", {"schema": schema})
        if built.get("success") is not True:
            raise UnbuildableGrammarError("The model server cannot build a grammar of the schema.")
