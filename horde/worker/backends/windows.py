"""How long a server's context is, by the routes that servers document for it. Pure: the answers are read, never asked.

vLLM says it in the model list; the others each have a route of their own, beside OpenAI's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["WINDOW_ROUTES", "WindowRoute", "positive"]


@dataclass(frozen=True, slots=True)
class WindowRoute:
    """A route that tells the window.

    Attributes:
        server: Who has it, for people.
        path: From the server's root.
        read: Takes the answer and the served model's id and returns tokens, or None when it does not say.
    """

    server: str
    path: str
    read: Callable[[Mapping[str, Any], str | None], int | None]


def positive(value: object) -> int | None:
    """Return a positive integer, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _tabby(answer: Mapping[str, Any], _model: str | None) -> int | None:
    parameters = answer.get("parameters")
    return positive(parameters.get("max_seq_len")) if isinstance(parameters, Mapping) else None


def _koboldcpp(answer: Mapping[str, Any], _model: str | None) -> int | None:
    return positive(answer.get("value"))


def _ollama(answer: Mapping[str, Any], model: str | None) -> int | None:
    """Read the loaded models: the context that one was loaded with is not the longest that it could have."""
    loaded = answer.get("models")
    for card in loaded if isinstance(loaded, list) else ():
        if isinstance(card, Mapping) and model in {card.get("name"), card.get("model")}:
            return positive(card.get("context_length"))
    return None


WINDOW_ROUTES: Final = (
    WindowRoute("TabbyAPI", "/v1/model", _tabby),
    WindowRoute("KoboldCpp", "/api/extra/true_max_context_length", _koboldcpp),
    WindowRoute("Ollama", "/api/ps", _ollama),
)
