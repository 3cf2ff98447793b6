"""The life of a request at its client: its states, and the table of legal transitions.

::

    NEW ──> WAITING ──> RUNNING ──> (HELD ──>) ANSWERED | FAILED | CANCELLED | EXPIRED
     │         │         │   ↑
     │         │         ↓   │
     │         │        PARKED ──────────────> FAILED | CANCELLED | EXPIRED
     │         └─────────────────────────────> FAILED | CANCELLED | EXPIRED
     └────> RUNNING | FAILED | EXPIRED

Where requests are joined, JOINING comes before RUNNING: there they wait for each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from scheduler.vocabulary import events
from scheduler.vocabulary.record import RequestState


class InvalidTransitionError(RuntimeError):
    """An event that cannot be in the request's state: a fault of whoever runs the machine."""


class Transition(NamedTuple):
    """The machine's method that handles it, and the states that it may lead to."""

    handler: str
    to: frozenset[RequestState]


def _row(handler: str, *to: RequestState) -> Transition:
    return Transition(handler, frozenset(to))


_S = RequestState

ENDED: Final = frozenset({_S.ANSWERED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})

#: Every legal (state, event). An event for all requests passes those by that have no row for it.
TRANSITIONS: Final[dict[tuple[RequestState, type], Transition]] = {
    (_S.NEW, events.Submitted): _row(
        "_admit", _S.WAITING, _S.JOINING, _S.RUNNING, _S.FAILED, _S.EXPIRED
    ),
    (_S.WAITING, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.WAITING, events.TimePassed): _row("_fall_due", _S.EXPIRED, _S.FAILED),
    (_S.WAITING, events.DeviceLost): _row("_wait_on", _S.WAITING, _S.FAILED),
    (_S.WAITING, events.DeviceGone): _row("_wait_on", _S.WAITING, _S.FAILED),
    (_S.WAITING, events.ClusterLost): _row("_lose_all", _S.FAILED),
    (_S.WAITING, events.Closed): _row("_cancel", _S.CANCELLED),
    (_S.JOINING, events.PartArrived): _row("_drop_late", _S.JOINING),
    (_S.JOINING, events.AttemptFailed): _row("_drop_late", _S.JOINING),
    (_S.JOINING, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.JOINING, events.TimePassed): _row("_fall_due", _S.EXPIRED, _S.JOINING),
    (_S.JOINING, events.DeviceLost): _row("_wait_on", _S.JOINING, _S.FAILED),
    (_S.JOINING, events.DeviceEnded): _row("_blame", _S.JOINING, _S.PARKED),
    (_S.JOINING, events.DeviceGone): _row("_wait_on", _S.JOINING, _S.FAILED),
    (_S.JOINING, events.ClusterLost): _row("_lose_all", _S.FAILED),
    (_S.JOINING, events.Closed): _row("_cancel", _S.CANCELLED),
    (_S.RUNNING, events.PartArrived): _row("_join", _S.ANSWERED, _S.HELD, _S.RUNNING),
    (_S.RUNNING, events.AttemptFailed): _row("_fail", _S.FAILED, _S.JOINING, _S.RUNNING, _S.PARKED),
    (_S.RUNNING, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.RUNNING, events.TimePassed): _row("_fall_due", _S.EXPIRED, _S.RUNNING),
    (_S.RUNNING, events.DeviceLost): _row("_lose", _S.FAILED, _S.JOINING, _S.RUNNING, _S.PARKED),
    (_S.RUNNING, events.DeviceEnded): _row("_blame", _S.RUNNING, _S.PARKED),
    (_S.RUNNING, events.DeviceGone): _row("_lose", _S.FAILED, _S.JOINING, _S.RUNNING, _S.PARKED),
    (_S.RUNNING, events.ClusterLost): _row("_lose_all", _S.FAILED),
    (_S.RUNNING, events.Closed): _row("_cancel", _S.CANCELLED),
    (_S.PARKED, events.PartArrived): _row("_drop_late", _S.PARKED),
    (_S.PARKED, events.AttemptFailed): _row("_drop_late", _S.PARKED),
    (_S.PARKED, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.PARKED, events.TimePassed): _row(
        "_fall_due", _S.EXPIRED, _S.PARKED, _S.JOINING, _S.RUNNING
    ),
    (_S.PARKED, events.DeviceEnded): _row("_blame", _S.PARKED, _S.FAILED),
    (_S.PARKED, events.DeviceGone): _row("_wait_on", _S.PARKED, _S.FAILED),
    (_S.PARKED, events.DeviceReturned): _row("_unpark", _S.PARKED, _S.JOINING, _S.RUNNING),
    (_S.PARKED, events.DeviceSteady): _row("_unpark", _S.PARKED, _S.JOINING, _S.RUNNING),
    (_S.PARKED, events.RoutesAdded): _row("_unpark", _S.PARKED, _S.JOINING, _S.RUNNING),
    (_S.PARKED, events.ClusterLost): _row("_lose_all", _S.FAILED),
    (_S.PARKED, events.Closed): _row("_cancel", _S.CANCELLED),
    (_S.HELD, events.PartArrived): _row("_drop_late", _S.HELD),
    (_S.HELD, events.AttemptFailed): _row("_drop_late", _S.HELD),
    (_S.HELD, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.HELD, events.TimePassed): _row("_fall_due", _S.EXPIRED, _S.HELD),
    (_S.HELD, events.Closed): _row("_cancel", _S.CANCELLED),
} | {
    (ended, late): _row("_drop_late", ended)
    for ended in sorted(ENDED, key=lambda s: s.value)
    for late in (events.PartArrived, events.AttemptFailed, events.CancelAsked)
}
