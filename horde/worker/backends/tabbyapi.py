"""The profile of TabbyAPI: its loaded model tells all, prompts are counted but for the marker of the reply."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from horde.worker.backends.base import BackendError
from horde.worker.backends.connection import positive
from horde.worker.backends.efforts import TABBYAPI_EFFORTS
from horde.worker.backends.openai_compatible import OpenAICompatibleBackend, ServerState, public_model_name
from horde.worker.backends.traits import Proof, ServerTraits

__all__ = ["TABBYAPI", "TabbyApiBackend"]

TABBYAPI: Final = ServerTraits(
    kind="TabbyAPI",
    recognised_by="`tabbyAPI` owns its model",
    window_by="`/v1/model`",
    slots_by="`/v1/model`, its largest batch",
    counting_by="`/v1/token/encode`, and room for the marker of the reply",
    seed=Proof.NEVER,
    presence_penalty=Proof.KIND,
    frequency_penalty=Proof.KIND,
    efforts=TABBYAPI_EFFORTS,
)

_MARKER_TOKENS: Final = 32
"""What a template may open the reply with: the route counts without it."""


class TabbyApiBackend(OpenAICompatibleBackend):
    """A TabbyAPI server; the model to share is the one that it has loaded."""

    traits: ClassVar[ServerTraits] = TABBYAPI

    async def _read_state(self) -> ServerState:
        card = await self._server.call_api("/model")
        loaded, wanted = card.get("id"), self._server.location.model
        if not isinstance(loaded, str) or not public_model_name(loaded):
            raise BackendError(f"The server at {self._server.location.base_url} has no model loaded.")
        if wanted not in {None, loaded, public_model_name(loaded)}:
            raise BackendError(
                f"The server at {self._server.location.base_url} has loaded {public_model_name(loaded)}, not {wanted}."
            )
        self._served_model = loaded
        parameters = card.get("parameters")
        told: Mapping[str, Any] = parameters if isinstance(parameters, dict) else {}
        return ServerState(
            model_name=public_model_name(loaded),
            window=positive(told.get("max_seq_len")),
            slots=positive(told.get("max_batch_size")),
            sees=told.get("use_vision") is True,
            uncounted_tokens=_MARKER_TOKENS,
        )

    async def _count_prompt(self, body: Mapping[str, Any]) -> int | None:
        asked = {"text": body["messages"], "template_vars": body.get("chat_template_kwargs", {})}
        tokens = positive((await self._server.call_api("/token/encode", asked)).get("length"))
        if tokens is None:
            raise BackendError("The model server did not count the prompt.")
        return _MARKER_TOKENS + tokens

    def _to_wire(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put a schema where TabbyAPI looks for one: it takes a response format's wrapping for the schema itself."""
        asked = body.get("response_format")
        if asked is None:
            return body
        wire = {key: value for key, value in body.items() if key != "response_format"}
        return wire | {"json_schema": asked.get("json_schema", {}).get("schema")}
