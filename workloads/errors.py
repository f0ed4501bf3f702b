"""What can go wrong in a workload, as one tree; each message is one line that says what to do.

WorkloadError
  OptionError       an option that can't be, or not here
  DataError         missing or damaged data
  ModelError        no such model, or not for this data
  CheckpointError   can't be written, read, or gone on from
  TrainingError     the training itself
  PolicyError       a setting of the transport that makes no sense
  TransportError    a collective that can't be finished; names the peers
    AbsentError     because ranks are gone, and absent=continue: those who are left may go on
"""

from __future__ import annotations

import sys
from collections.abc import Callable


class WorkloadError(Exception):
    """A mistake or a limit that the user can act on."""


class OptionError(WorkloadError):
    pass


class DataError(WorkloadError):
    pass


class ModelError(WorkloadError, ValueError):
    pass


class CheckpointError(WorkloadError):
    pass


class TrainingError(WorkloadError):
    pass


class PolicyError(WorkloadError, ValueError):
    pass


class TransportError(WorkloadError, RuntimeError):
    pass


class AbsentError(TransportError):
    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


def status_of(run: Callable[[], object]) -> int:
    """Of a program: what the user can act on is one line on standard error."""
    try:
        run()
    except WorkloadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
