"""The profile of vLLM: exact prompt counts, every sampler; its slots are whatever fits its memory."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from horde.worker.backends.base import BackendError
from horde.worker.backends.connection import positive
from horde.worker.backends.efforts import VLLM_EFFORTS
from horde.worker.backends.openai_compatible import OpenAICompatibleBackend
from horde.worker.backends.traits import Proof, ServerTraits

__all__ = ["VLLM", "VllmBackend"]

VLLM: Final = ServerTraits(
    kind="vLLM",
    recognised_by="`vllm` owns its model",
    window_by="`max_model_len` of its model list",
    slots_by="the setting: it batches what comes",
    counting_by="`/tokenize`",
    seed=Proof.KIND,
    presence_penalty=Proof.KIND,
    frequency_penalty=Proof.KIND,
    pictures=Proof.TRIED,
    efforts=VLLM_EFFORTS,
)


class VllmBackend(OpenAICompatibleBackend):
    """A vLLM server."""

    traits: ClassVar[ServerTraits] = VLLM

    async def _count_prompt(self, body: Mapping[str, Any]) -> int | None:
        asked = {key: body[key] for key in ("model", "messages", "tools", "chat_template_kwargs") if key in body}
        tokens = positive((await self._server.call("/tokenize", asked)).get("count"))
        if tokens is None:
            raise BackendError("The model server did not count the prompt.")
        return tokens
