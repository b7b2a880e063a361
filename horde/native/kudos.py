"""What a request costs, in whole hundredths of a kudos; pure (KUD-8, KUD-11, KUD-13).

Price of a reply: tokens times multiplier by 21, rounded to two decimals; an image costs 5 kudos more. The multiplier is
the model's parameters in billions, at least 1.
"""

import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

__all__ = [
    "IMAGE_CENTS",
    "MAX_FREE_TOKENS",
    "MIN_FREE_TOKENS",
    "free_output_allowance",
    "model_multiplier",
    "parameters_in_name",
    "price_cents",
    "to_kudos",
]

IMAGE_CENTS: Final = 500
"""Price of an image in a prompt, hundredths of a kudos."""

MAX_FREE_TOKENS: Final = 4096
"""The free output allowance of an idle pool, in tokens."""

MIN_FREE_TOKENS: Final = 512
"""What the free output allowance never falls under, in tokens."""

_TOKENS_PER_KUDOS: Final = 21
"""Tokens of a model of one billion parameters that a kudos buys."""

_MAX_MULTIPLIER: Final = 10_000.0
"""Bound of what a model's name can claim: a worker names its model, and its owner is paid by it."""

_PARAMETERS: Final = re.compile(
    r"(?<![a-z0-9.])(?:(?P<experts>\d{1,3})x)?(?P<size>\d{1,5}(?:\.\d{1,3})?)(?P<unit>[bm])(?![a-z0-9])",
    re.IGNORECASE,
)
"""A size within a name, such as ``8B``, ``0.5b``, ``135M`` or ``8x7B``."""


def parameters_in_name(model: str) -> float | None:
    """Return the parameters, in billions, that a model's name states, or None; the first size in the name counts."""
    found = _PARAMETERS.search(model)
    if found is None:
        return None
    size = float(found["size"]) * int(found["experts"] or 1)
    return size / 1000 if found["unit"] in "mM" else size


def model_multiplier(model: str, declared_billions: float | None = None) -> float:
    """Return the factor of a model's price, at least 1.

    Args:
        model: The model's name, read for a size when none is declared.
        declared_billions: Its parameters in billions, as an administrator entered them.
    """
    billions = declared_billions if declared_billions is not None else parameters_in_name(model)
    return min(max(1.0, billions or 1.0), _MAX_MULTIPLIER)


def price_cents(tokens: int, multiplier: float, images: int = 0) -> int:
    """Return the price of a reply in hundredths of a kudos.

    Args:
        tokens: Its length, in tokens.
        multiplier: The factor of the model that serves it.
        images: Images in the prompt.
    """
    exact = Decimal(tokens) * Decimal(str(multiplier)) * 100 / _TOKENS_PER_KUDOS
    return int(exact.to_integral_value(ROUND_HALF_UP)) + IMAGE_CENTS * images


def to_kudos(cents: int) -> float:
    """Return an amount as the wire has it: kudos with two decimals."""
    return cents / 100


def free_output_allowance(jobs: int, threads: int) -> int:
    """Return the reply length, in tokens, that needs no kudos upfront (KUD-11).

    It is :data:`MAX_FREE_TOKENS` on an idle pool, halves with the first job per thread, and so on.

    Args:
        jobs: Requests waiting and jobs running for the models asked for.
        threads: Threads of the eligible online workers; none counts as one, as what nobody can serve is no load.
    """
    served = max(1, threads)
    return max(MIN_FREE_TOKENS, MAX_FREE_TOKENS * served // (served + jobs))
