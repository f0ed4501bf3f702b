"""The error tree. Each class carries the exit code a user sees; each message names the next step."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit status says."""

    VALID = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    NOT_ABLE = 4
    INTERRUPTED = 130


class LossbenchError(Exception):
    """A mistake or a limit that the user can act on: one line, and what to do next."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        end = "" if self.message.endswith("?") else ";"
        return f"{self.message}{end} {self.next_step}" if self.next_step else self.message


class UsageError(LossbenchError):
    """What was asked can't be understood: a typo, an impossible value, a missing file."""

    exit_code = ExitCode.USAGE


class NotAbleError(LossbenchError):
    """This machine can't do what was asked (no privilege, no such qdisc, disk full)."""

    exit_code = ExitCode.NOT_ABLE


class RunError(LossbenchError):
    """The run itself went wrong: a rank died, a link went away."""

    exit_code = ExitCode.FAILED


class VanishedError(RunError):
    """A machine of a lab does not answer any more."""

    exit_code = ExitCode.UNKNOWN
