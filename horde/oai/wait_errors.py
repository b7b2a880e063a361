"""Why a wait ended without a reply; what the client gets for each is decided in :mod:`horde.oai.wait_answers`.

WaitError
├─ NoEligibleWorkerError    nobody may serve it, for the whole grace
├─ DeclarationGapError      the Horde says what every online worker lacks
├─ QueueUnavailableError    fail_fast: nobody is free in time
├─ RequestFaultedError      the Horde gave it up
├─ NoGenerationError        it is done and there is no reply
├─ StatusRefusedError       the Horde refuses to tell, such as 404
├─ FrontStoppingError       this front gives up what it runs
├─ StreamDivergedError      the text relayed so far will not be continued
└─ WaitTimeoutError         the budget ran out
"""

from typing import Literal

from horde.oai.horde_client import NativeAnswer
from horde.oai.native_status import Fault, ImpossibleReason

__all__ = [
    "DeclarationGapError",
    "FrontStoppingError",
    "NoEligibleWorkerError",
    "NoGenerationError",
    "QueueUnavailableError",
    "RequestFaultedError",
    "StatusRefusedError",
    "StreamDivergedError",
    "WaitError",
    "WaitTimeoutError",
]


class WaitError(Exception):
    """A wait ended without a reply."""


class NoEligibleWorkerError(WaitError):
    """No worker was eligible for the whole grace (NEW-4)."""


class DeclarationGapError(WaitError):
    """The online workers lack a declaration, or declare less than the request needs (NEW-6).

    Attributes:
        reason: The Horde's reason.
    """

    def __init__(self, reason: ImpossibleReason) -> None:
        super().__init__(reason.kind)
        self.reason = reason


class QueueUnavailableError(WaitError):
    """A ``fail_fast`` request met no free thread, or a longer queue than its budget (FFA).

    Attributes:
        reason: Which of the two.
        threads: Eligible worker threads of the deciding read.
        wait_time: Its estimated wait in seconds.
        budget_left: Seconds left at that read.
    """

    def __init__(
        self,
        reason: Literal["no_eligible_threads", "wait_exceeds_budget"],
        *,
        threads: int | None,
        wait_time: float | None,
        budget_left: float,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.threads = threads
        self.wait_time = wait_time
        self.budget_left = budget_left


class RequestFaultedError(WaitError):
    """The Horde gave the request up (WAI-8).

    Attributes:
        fault: Its reason, when it has one.
    """

    def __init__(self, fault: Fault | None) -> None:
        super().__init__("faulted")
        self.fault = fault


class NoGenerationError(WaitError):
    """The request is done, not faulted, and there is no reply (DWG-3)."""


class StatusRefusedError(WaitError):
    """The Horde refused a status read for good (WAI-9).

    Attributes:
        answer: Its answer.
    """

    def __init__(self, answer: NativeAnswer) -> None:
        super().__init__(str(answer.status))
        self.answer = answer


class FrontStoppingError(WaitError):
    """This front stops and gives up what still runs (decision U44)."""


class StreamDivergedError(WaitError):
    """A relayed stream cannot finish consistently (DLT-27 to DLT-31)."""


class WaitTimeoutError(WaitError):
    """The budget ran out (WAI-7)."""
