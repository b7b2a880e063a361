"""What is known of each kind of server before it is asked; ``docs/reference/worker_declarations.md`` shows it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from horde.worker.backends.efforts import OPENAI_EFFORTS, EffortMapping

__all__ = ["OPENAI_COMPATIBLE", "Proof", "ServerTraits"]


class Proof(StrEnum):
    """Why something may be declared."""

    KIND = "of this kind of server"
    """This kind applies it to every model, by its documentation and source."""

    TRIED = "when tried at start"
    """A question at start proves it for this server and model."""

    SAID_AND_TRIED = "when the server says so and it was seen at start"
    """The server tells of it, and a question at start proves that."""

    NEVER = "never"
    """This kind does not do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTraits:
    """A kind of model server.

    Attributes:
        kind: Its name, for people.
        recognised_by: How the worker tells it from others.
        window_by: Who tells the context's length.
        slots_by: Who tells how many replies are generated at the same time.
        counting_by: How the tokens of a prompt are counted.
        seed: Why the seed may be declared.
        presence_penalty: The same of the presence penalty.
        frequency_penalty: The same of the frequency penalty.
        pictures: The same of vision.
        efforts: How it is told a ``reasoning_effort``, in the order in which they are tried.
    """

    kind: str
    recognised_by: str
    window_by: str
    slots_by: str
    counting_by: str
    seed: Proof
    presence_penalty: Proof
    frequency_penalty: Proof
    pictures: Proof = Proof.SAID_AND_TRIED
    efforts: tuple[EffortMapping, ...]


OPENAI_COMPATIBLE: Final = ServerTraits(
    kind="OpenAI-compatible server",
    recognised_by="what is none of the others",
    window_by="`max_model_len` of its model list, else the setting",
    slots_by="the setting",
    counting_by="an upper bound by bytes",
    seed=Proof.TRIED,
    presence_penalty=Proof.TRIED,
    frequency_penalty=Proof.TRIED,
    pictures=Proof.TRIED,
    efforts=OPENAI_EFFORTS,
)
