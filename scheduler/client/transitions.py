"""Life cycle of a request at its client: the states and the table of legal transitions.

::

    NEW ──> WAITING ──> RUNNING ──> (AWAITING_TURN ──>) ANSWERED | FAILED | CANCELLED | EXPIRED
     │         │         │   ↑
     │         │         ↓   │
     │         │        PARKED ──────────────> FAILED | CANCELLED | EXPIRED
     │         └─────────────────────────────> FAILED | CANCELLED | EXPIRED
     └────> RUNNING | FAILED | EXPIRED

    DIRECT ──> RUNNING | CANCELLED

With dynamic batching, requests wait for each other in JOINING before RUNNING. A request that its
caller's thread runs is DIRECT; it needs no event unless something unusual happens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from hetero.scheduler.types import events as ev
from hetero.scheduler.types.request_record import RequestState


class InvalidTransitionError(RuntimeError):
    """Event that is illegal in the request's state: a bug in the code that drives the machine."""


class Transition(NamedTuple):
    """Handler of an event: a method of the machine, and the states that may follow."""

    handler: str
    to: frozenset[RequestState]


_S = RequestState
_Kind = type[ev.ClientEvent]

ENDED: Final = frozenset({_S.ANSWERED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})
_LIVE: Final = (_S.WAITING, _S.JOINING, _S.RUNNING, _S.PARKED, _S.AWAITING_TURN)

#: States, events, handler, and the states that may follow; None stands for no change.
_ROWS: Final[tuple[tuple[Collection[_S], Collection[_Kind], str, Collection[_S | None]], ...]] = (
    (
        [_S.NEW],
        [ev.Submitted],
        "_admit",
        [_S.WAITING, _S.JOINING, _S.RUNNING, _S.FAILED, _S.EXPIRED],
    ),
    ([_S.DIRECT], [ev.Adopted], "_adopt", [_S.RUNNING, _S.CANCELLED]),
    ([_S.DIRECT, *_LIVE], [ev.CancelRequested, ev.Closed], "_cancel", [_S.CANCELLED]),
    (_LIVE[:4], [ev.ClusterLost], "_lose_all", [_S.FAILED]),
    ([_S.WAITING], [ev.TimePassed], "_fall_due", [_S.EXPIRED, _S.FAILED]),
    ([_S.JOINING, _S.RUNNING, _S.AWAITING_TURN], [ev.TimePassed], "_fall_due", [_S.EXPIRED, None]),
    ([_S.PARKED], [ev.TimePassed], "_fall_due", [_S.EXPIRED, _S.JOINING, _S.RUNNING, None]),
    ([_S.WAITING, _S.JOINING], [ev.DeviceLost], "_wait_on", [_S.FAILED, None]),
    ([_S.WAITING, _S.JOINING, _S.PARKED], [ev.DeviceRemoved], "_wait_on", [_S.FAILED, None]),
    (
        [_S.RUNNING],
        [ev.DeviceLost, ev.DeviceRemoved],
        "_handle_loss",
        [_S.FAILED, _S.JOINING, _S.RUNNING, _S.PARKED],
    ),
    ([_S.JOINING, _S.RUNNING], [ev.DeviceEnded], "_count_crash", [_S.PARKED, None]),
    ([_S.PARKED], [ev.DeviceEnded], "_count_crash", [_S.FAILED, None]),
    (
        [_S.PARKED],
        [ev.DeviceReturned, ev.DeviceSteady, ev.RoutesAdded],
        "_unpark",
        [_S.JOINING, _S.RUNNING, None],
    ),
    ([_S.RUNNING], [ev.PartArrived], "_join", [_S.ANSWERED, _S.AWAITING_TURN, None]),
    ([_S.RUNNING], [ev.AttemptFailed], "_fail", [_S.FAILED, _S.JOINING, _S.RUNNING, _S.PARKED]),
    (
        [_S.JOINING, _S.PARKED, _S.AWAITING_TURN],
        [ev.PartArrived, ev.AttemptFailed],
        "_drop_late",
        [None],
    ),
    (ENDED, [ev.PartArrived, ev.AttemptFailed, ev.CancelRequested], "_drop_late", [None]),
)

#: Every legal (state, event). An event for all requests skips those in states without an entry.
TRANSITIONS: Final[dict[tuple[RequestState, type], Transition]] = {
    (state, kind): Transition(handler, frozenset(after or state for after in to))
    for states, kinds, handler, to in _ROWS
    for state in states
    for kind in kinds
}
