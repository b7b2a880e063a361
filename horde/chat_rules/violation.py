"""What a broken rule reports: the code, the path at fault and a sentence in OpenAI's words."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ContractViolation", "ViolationCode"]

ViolationCode = Literal["BadRequest", "UnsupportedChatParameter", "ChatRequestConflict"]
"""The three codes of invalid or unsupported input (ERR-7), each a 400."""


@dataclass(frozen=True, slots=True)
class ContractViolation:
    """One rule that a request breaks.

    Attributes:
        code: The error code, the same from front and Horde.
        param: The path at fault, such as ``messages[2].role``.
        message: One sentence; where OpenAI has one for the case, it is theirs.
    """

    code: ViolationCode
    param: str
    message: str
