"""Which failed attempts are made again, and where."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from devices.errors import DeviceLostError, OverloadedError


class Retry(Enum):
    """What follows a failed attempt, as long as attempts and deadline allow."""

    #: Another attempt, on any route; once the device is back, where there is no other.
    REPLAY = "replay"
    #: Another attempt on a route where none has failed so; the error, where there is none.
    ELSEWHERE = "elsewhere"
    #: The caller gets the error.
    NEVER = "never"


#: What follows an error.
RetryPolicy = Callable[[BaseException], Retry]


def replay_lost(error: BaseException) -> Retry:
    """Replay what was lost with a device, or on its way, or turned away by a full queue.

    What does not fit into a device's memory may fit into another's; what else a plugin raised
    would be raised again.
    """
    if isinstance(error, DeviceLostError | OverloadedError):
        return Retry.REPLAY
    return Retry.ELSEWHERE if isinstance(error, MemoryError) else Retry.NEVER
