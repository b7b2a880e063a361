"""What can go wrong on one machine, said to the person at the terminal."""

import errno
import os
from collections.abc import Iterable, Sequence

__all__ = ["PartCrashedError", "StartError", "explain_os_error", "ran_out_of_space"]


class StartError(Exception):
    """Something cannot be started; the message is one sentence that says why and what to do.

    Attributes:
        log_lines: The last lines of the log that shows it, when there is one.
    """

    def __init__(self, message: str, log_lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log_lines = list(log_lines)


class PartCrashedError(Exception):
    """A part that ran ended by itself.

    Attributes:
        part: Its name, as printed while starting.
        returncode: Its exit code; negative for the number of the signal that ended it.
        log_lines: The last lines that it logged.
    """

    def __init__(self, part: str, returncode: int, log_lines: list[str]) -> None:
        how = f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"
        super().__init__(f"{part} stopped unexpectedly ({how}).")
        self.part = part
        self.returncode = returncode
        self.log_lines = log_lines


def explain_os_error(error: OSError, doing: str) -> StartError:
    """Turn an operating system's refusal into one sentence.

    Args:
        error: What was raised.
        doing: What was being done, as it continues "Cannot …".
    """
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StartError(f"Cannot {doing}: the disk is full; free some space and start again.")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StartError(f"Cannot {doing}: this user may not write there; choose another --state-dir.")
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StartError(f"Cannot {doing}: {reason}.")


def ran_out_of_space(log_lines: Iterable[str]) -> bool:
    """Whether a program's last words were that its disk is full."""
    return any(os.strerror(errno.ENOSPC) in line or os.strerror(errno.EDQUOT) in line for line in log_lines)
