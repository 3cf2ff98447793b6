"""Which devices are there: what is seen of them in, what is to be done about it out. Pure.

::

    LIVE ──> SILENT ──> RESTARTING ──> GONE
      ↑ ↖──────┘            │           │
      └─────────────────────┴───────────┘

A device is a process at an address. One that is not heard, or lost messages, may have lost
requests: clients are told, and send them again once it is back. One that stays silent, whose
process ended or in which a stage hangs is started anew, which gives it another address; what is
heard of an earlier address counts for nothing. A device that cannot be started again soon is
tried less and less often, and clients that can do without it meanwhile are told to; at once where
its node is cut off, when there is nothing to start.

A device that is heard again is back at once, but relied on only once it has been heard for long
enough. If it falls silent before, as one does on a machine that mostly stands still, clients are to
do without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from hetero.scheduler.vocabulary.events import (
    DeviceEnded,
    DeviceGone,
    DeviceLost,
    DeviceReturned,
    DeviceSteady,
)

#: Seconds before the second start in a row, and the most before a later one.
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
#: Seconds after which it is no more waited for alone that a device is started.
_AWAY_S: Final = 4.0
#: A stage of a pool's device hangs after so many seconds at least, whatever its STAGE_TIMEOUT_S:
#: its process is ended for all clients.
_LEAST_OVERDUE_S: Final = 10.0
#: A device that has lived so long has started well.
_STEADY_S: Final = 30.0
#: A device is relied on again once it was heard for so many times its silence, so long at most:
#: silence is noticed only after a while.
_DOUBT: Final = 2.0
_LONGEST_DOUBT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Restart:
    """End the process at an address, whatever it does, and start the device anew.

    `keep`: not the process; its stages alone are loaded again.
    """

    device: str
    address: str
    cause: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class StaysAway:
    """A device takes long to start: whoever can do without it should, until it returns."""

    now_s: float
    device: str
    node: str
    cause: str


Order = DeviceLost | DeviceEnded | DeviceGone | DeviceReturned | DeviceSteady | Restart | StaysAway


class DeviceState(Enum):
    """How a device is."""

    LIVE = "live"
    SILENT = "silent"
    RESTARTING = "restarting"
    GONE = "gone"


_S = DeviceState


@dataclass(slots=True)
class _Device:
    name: str
    node: str
    address: str
    state: DeviceState = DeviceState.LIVE
    #: When it came to be live.
    since_s: float = 0.0
    cause: str = ""
    #: Whether its process goes on, when it is to be started.
    keep: bool = False
    #: Starts in a row after which it did not live long.
    num_starts: int = 0
    #: When it is to be started; never while that is under way, or not wanted.
    restart_s: float = inf
    #: When it is to be done without; never once that was said, or not wanted.
    away_s: float = inf
    #: When it was last heard, before it fell silent.
    heard_s: float = 0.0
    #: When it is to be relied on again; never where it is, or is away.
    steady_s: float = inf


class Liveness:
    """The devices of an executor.

    `device_timeout_s`: a device that is silent for so long more, once it is found silent, is
        started anew.
    `of_pool`: whether the devices are shared with other clients.
    `keeps`: whether devices are ended and started by who asks here; else, in a pool, by its keeper:
        a silent device may be well for all others, and is only done without.
    """

    def __init__(
        self, device_timeout_s: float = 2.0, *, of_pool: bool = False, keeps: bool = True
    ) -> None:
        self._device_timeout_s = device_timeout_s
        self._least_overdue_s = _LEAST_OVERDUE_S if of_pool else 0.0
        self._keeps = keeps
        self._devices: dict[str, _Device] = {}
        #: Address -> device, for the present addresses.
        self._at: dict[str, _Device] = {}
        #: Addresses of processes that were given up, until their devices have started anew: some
        #: are heard until they are ended.
        self.given_up: set[str] = set()
        #: When `passed` is wanted next: before, there is nothing to look at.
        self.next_time_s = inf

    def state(self, device: str) -> DeviceState | None:
        """Return how a device is; None for one that was never started."""
        return self._devices[device].state if device in self._devices else None

    def returned(self, now_s: float, device: str) -> DeviceReturned | None:
        """Return what clients are told now of a device that is back; None where it is not."""
        if self.state(device) is not _S.LIVE:
            return None
        return self._back(self._devices[device], now_s)

    # What is seen; each returns what is to be done, in order.

    def started(self, now_s: float, name: str, node: str, address: str) -> list[Order]:
        """Take in that a device listens at an address, its stages loaded."""
        device = self._devices.setdefault(name, _Device(name, node, address))
        was_away = device.state is not _S.LIVE
        self._at.pop(device.address, None)
        self.given_up -= {device.address, address}
        self._at[address] = device
        device.address, device.node = address, node
        device.state, device.since_s, device.restart_s = _S.LIVE, now_s, inf
        device.away_s = inf
        return [DeviceReturned(now_s, name)] if was_away else []

    def start_failed(self, now_s: float, name: str) -> list[Order]:
        """Take in that a device could not be started."""
        device = self._devices.get(name)
        if device is None or device.state is not _S.RESTARTING:
            return []
        return self._again(device, now_s)

    def silent(self, now_s: float, address: str, silent_s: float) -> list[Order]:
        """Take in that nothing was heard from an address for `silent_s`."""
        device = self._at.get(address)
        if device is None or device.state is not _S.LIVE:
            return []
        cause = f"nothing was heard for {silent_s:.1f} s"
        device.state, device.cause = _S.SILENT, cause
        if self._keeps:
            device.restart_s = self._by(now_s + self._device_timeout_s)
        else:
            device.away_s = self._by(now_s + self._device_timeout_s + _AWAY_S)
        device.heard_s = now_s - silent_s
        lost = self._lost(device, now_s, cause, may_live=True)
        if device.steady_s == inf:
            return [lost]
        device.steady_s = inf
        return [lost, StaysAway(now_s, device.name, device.node, cause)]

    def heard(self, now_s: float, address: str, overdue_s: float = 0.0) -> list[Order]:
        """Take in that an address is heard; a stage has run for `overdue_s`, longer than it may."""
        device = self._at.get(address)
        if device is None or 0 < overdue_s <= self._least_overdue_s:
            return []
        if overdue_s:
            cause = f"a stage has run for {overdue_s:.1f} s, longer than its STAGE_TIMEOUT_S"
            return self._end(device, now_s, cause)
        if device.state is not _S.SILENT:
            return []
        device.state, device.since_s, device.restart_s = _S.LIVE, now_s, inf
        device.away_s = inf
        doubt_s = min(_DOUBT * (now_s - device.heard_s), _LONGEST_DOUBT_S)
        device.steady_s = self._by(now_s + doubt_s)
        return [self._back(device, now_s)]

    def messages_lost(self, now_s: float, address: str) -> list[Order]:
        """Take in that messages from or to an address were lost on their way."""
        device = self._at.get(address)
        if device is None or device.state is not _S.LIVE:
            return []
        cause = "messages were lost on their way"
        lost = DeviceLost(now_s, device.name, device.node, cause, on_the_way=True)
        return [lost, self._back(device, now_s)]

    def ended(self, now_s: float, address: str, cause: str) -> list[Order]:
        """Take in that the process at an address has ended."""
        device = self._at.get(address)
        return self._end(device, now_s, cause) if device else []

    def unloaded(self, now_s: float, address: str) -> list[Order]:
        """Take in that a device has let go of our stages, as it had not heard of us for long."""
        device, cause = self._at.get(address), "it has not heard of this client for long"
        return self._end(device, now_s, cause, keep=True) if device else []

    def unreached(self, now_s: float, address: str) -> list[Order]:
        """Take in that a device's node lets nobody in; it may be there yet, with its stages."""
        device = self._at.get(address)
        if device is None or device.state is not _S.SILENT:
            return []
        if self._keeps:
            device.restart_s = self._by(now_s + self._device_timeout_s)
        return [StaysAway(now_s, device.name, device.node, device.cause)]

    def node_left(self, now_s: float, name: str, cause: str) -> list[Order]:
        """Take in that a device's node has left the cluster."""
        device = self._devices.get(name)
        if device is None or device.state is _S.GONE:
            return []
        self._at.pop(device.address, None)
        device.state, device.restart_s, device.away_s = _S.GONE, inf, inf
        device.steady_s = inf
        return [DeviceGone(now_s, device.name, device.node, cause)]

    def passed(self, now_s: float) -> list[Order]:
        """Take in what time it is: restarts may be due."""
        if now_s < self.next_time_s:
            return []
        devices = self._devices.values()
        orders = [order for device in devices for order in self._wait(device, now_s)]
        times = (min(d.restart_s, d.away_s, d.steady_s) for d in devices)
        self.next_time_s = min(times, default=inf)
        return orders

    def _by(self, time_s: float) -> float:
        """Have the devices looked at by then."""
        self.next_time_s = min(self.next_time_s, time_s)
        return time_s

    def _end(self, device: _Device, now_s: float, cause: str, *, keep: bool = False) -> list[Order]:
        """Give up a process: start the device anew, at once if it is the first time of late."""
        orders: list[Order] = []
        if device.state is _S.LIVE:
            orders.append(self._lost(device, now_s, cause, may_live=keep))
            if now_s - device.since_s >= _STEADY_S:
                device.num_starts = 0
        elif device.state is _S.SILENT:
            orders.append(DeviceEnded(now_s, device.name))
        del self._at[device.address]
        self.given_up.add(device.address)
        device.state, device.cause, device.keep = _S.RESTARTING, cause, keep
        device.steady_s = inf
        device.away_s = self._by(now_s + _AWAY_S)
        return orders + self._again(device, now_s)

    def _again(self, device: _Device, now_s: float) -> list[Order]:
        """Start a device now, or after a pause that grows with each start in a row."""
        pause_s = _PAUSE_S * 2 ** min(device.num_starts - 1, 10) if device.num_starts else 0.0
        device.num_starts += 1
        device.restart_s = self._by(now_s + min(pause_s, _LONGEST_PAUSE_S))
        return self._restart(device, now_s)

    def _wait(self, device: _Device, now_s: float) -> list[Order]:
        orders = self._restart(device, now_s)
        if now_s >= device.away_s:
            device.away_s = inf
            orders.append(StaysAway(now_s, device.name, device.node, device.cause))
        if now_s >= device.steady_s:
            device.steady_s = inf
            orders.append(DeviceSteady(now_s, device.name))
        return orders

    def _restart(self, device: _Device, now_s: float) -> list[Order]:
        if now_s < device.restart_s:
            return []
        if device.state is _S.SILENT:
            return self._end(device, now_s, device.cause)
        device.restart_s = inf
        keep, device.keep = device.keep, False
        return [Restart(device.name, device.address, device.cause, keep)]

    def _back(self, device: _Device, now_s: float) -> DeviceReturned:
        return DeviceReturned(now_s, device.name, is_steady=device.steady_s == inf)

    def _lost(
        self, device: _Device, now_s: float, cause: str, *, may_live: bool = False
    ) -> DeviceLost:
        return DeviceLost(now_s, device.name, device.node, cause, may_live=may_live)
