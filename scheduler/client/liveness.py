"""State machine of device liveness: observations in, orders out. No I/O.

::

    LIVE ──> SUSPECTED ──> RESTARTING ──> REMOVED
      ↑ ↖───────┘              │             │
      └────────────────────────┴─────────────┘

A device is a process at an address. A device that cannot be reached, or that lost messages, may
have lost requests: clients resend them once it is back. A device is restarted, at another address,
if it stays unreachable, its process ends, or one of its stages hangs; observations of an earlier
address are ignored. The pauses between restarts in a row grow. Meanwhile clients exclude a device
that takes long to restart; one whose node is cut off at once, as there is nothing to restart.

A device that answers again is live at once, but relied on only once it has been live for long
enough. If it is suspected before, as happens on a machine that mostly stands still, clients exclude
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from hetero.scheduler.types.events import (
    DeviceEnded,
    DeviceLost,
    DeviceRemoved,
    DeviceReturned,
    DeviceSteady,
)

#: Seconds before the second start in a row, and the most before a later one.
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
#: Seconds of a restart after which clients exclude the device.
_EXCLUDED_AFTER_S: Final = 4.0
#: Minimum seconds after which a stage of a pool's device counts as hanging, even if its
#: STAGE_TIMEOUT_S is lower, because its process is ended for all clients.
_LEAST_OVERDUE_S: Final = 10.0
#: Seconds of life after which a start counts as successful.
_STEADY_S: Final = 30.0
#: Probation of a device that was unreachable, as a multiple of that time, and its maximum in
#: seconds.
_PROBATION: Final = 2.0
_LONGEST_PROBATION_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Kill the process at an address and start the device in another one.

    `keep`: keep the process, and load its stages again.
    """

    device: str
    address: str
    cause: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Exclude:
    """Plan without a device that takes long to restart, until it returns, if that is possible."""

    now_s: float
    device: str
    node: str
    cause: str


Order = DeviceLost | DeviceEnded | DeviceRemoved | DeviceReturned | DeviceSteady | Restart | Exclude


class DeviceState(Enum):
    """State of a device; SWIM's words."""

    LIVE = "live"
    SUSPECTED = "suspected"
    RESTARTING = "restarting"
    REMOVED = "removed"


_S = DeviceState


@dataclass(slots=True)
class _Device:
    name: str
    node: str
    address: str
    state: DeviceState = DeviceState.LIVE
    #: Since when it is live.
    since_s: float = 0.0
    cause: str = ""
    #: Whether its restart keeps its process.
    keep: bool = False
    #: Restarts in a row after each of which it did not live long.
    num_starts: int = 0
    #: When to restart it; infinite while a restart is under way, or not wanted.
    restart_s: float = inf
    #: When to exclude it; infinite once it is excluded, or if that is not wanted.
    exclude_s: float = inf
    #: When it was last reachable, before it was suspected.
    heard_s: float = 0.0
    #: When to rely on it again; infinite if it is relied on, or not live.
    steady_s: float = inf


class Liveness:
    """Liveness of an executor's devices.

    `device_timeout_s`: seconds after which a suspected device is restarted.
    `of_pool`: whether the devices are shared with other clients.
    `restarts`: whether this executor restarts devices. A pool's supervisor does it for the pool's
        clients: a device that one of them suspects may be live for all others, so that client only
        excludes it.
    """

    def __init__(
        self, device_timeout_s: float = 2.0, *, of_pool: bool = False, restarts: bool = True
    ) -> None:
        self._device_timeout_s = device_timeout_s
        self._least_overdue_s = _LEAST_OVERDUE_S if of_pool else 0.0
        self._restarts = restarts
        self._devices: dict[str, _Device] = {}
        #: Address -> device, for the present addresses.
        self._device_at: dict[str, _Device] = {}
        #: Addresses of processes that are being replaced; some answer until they are killed.
        self.given_up: set[str] = set()
        #: When to call `tick` next.
        self.next_time_s = inf

    def state(self, device: str) -> DeviceState | None:
        """Return a device's state; None for one that was never started."""
        return self._devices[device].state if device in self._devices else None

    def return_event(self, now_s: float, device: str) -> DeviceReturned | None:
        """Return the event of a device's return as of now; None unless it is live."""
        if self.state(device) is not _S.LIVE:
            return None
        return self._return_event(self._devices[device], now_s)

    # Observations; each method returns the orders to carry out, in order.

    def observe_start(self, now_s: float, name: str, node: str, address: str) -> list[Order]:
        """Observe that a device listens at an address, its stages loaded."""
        device = self._devices.setdefault(name, _Device(name, node, address))
        was_away = device.state is not _S.LIVE
        self._device_at.pop(device.address, None)
        self.given_up -= {device.address, address}
        self._device_at[address] = device
        device.address, device.node = address, node
        device.state, device.since_s, device.restart_s = _S.LIVE, now_s, inf
        device.exclude_s = inf
        return [DeviceReturned(now_s, name)] if was_away else []

    def start_failed(self, now_s: float, name: str) -> list[Order]:
        """Observe that a device could not be restarted."""
        device = self._devices.get(name)
        if device is None or device.state is not _S.RESTARTING:
            return []
        return self._schedule_restart(device, now_s)

    def observe_silence(self, now_s: float, address: str, silent_s: float) -> list[Order]:
        """Observe that an address cannot be reached, and last could `silent_s` ago."""
        device = self._device_at.get(address)
        if device is None or device.state is not _S.LIVE:
            return []
        cause = f"it cannot be reached, and last could {silent_s:.1f} s ago"
        device.state, device.cause = _S.SUSPECTED, cause
        if self._restarts:
            device.restart_s = self._schedule_tick(now_s + self._device_timeout_s)
        else:
            device.exclude_s = self._schedule_tick(
                now_s + self._device_timeout_s + _EXCLUDED_AFTER_S
            )
        device.heard_s = now_s - silent_s
        loss = self._loss_event(device, now_s, cause, may_live=True)
        if device.steady_s == inf:
            return [loss]
        device.steady_s = inf
        return [loss, Exclude(now_s, device.name, device.node, cause)]

    def observe_answer(self, now_s: float, address: str) -> list[Order]:
        """Observe that a suspected address answers."""
        device = self._device_at.get(address)
        if device is None or device.state is not _S.SUSPECTED:
            return []
        device.state, device.since_s, device.restart_s = _S.LIVE, now_s, inf
        device.exclude_s = inf
        probation_s = min(_PROBATION * (now_s - device.heard_s), _LONGEST_PROBATION_S)
        device.steady_s = self._schedule_tick(now_s + probation_s)
        return [self._return_event(device, now_s)]

    def observe_overdue_run(self, now_s: float, address: str, overdue_s: float) -> list[Order]:
        """Observe that a stage has run for `overdue_s` at an address, longer than it may."""
        device = self._device_at.get(address)
        if device is None or overdue_s <= self._least_overdue_s:
            return []
        cause = f"a stage has run for {overdue_s:.1f} s, longer than its STAGE_TIMEOUT_S"
        return self._replace_process(device, now_s, cause)

    def messages_lost(self, now_s: float, address: str) -> list[Order]:
        """Observe that messages from or to an address were lost."""
        device = self._device_at.get(address)
        if device is None or device.state is not _S.LIVE:
            return []
        cause = "messages were lost on their way"
        loss = DeviceLost(now_s, device.name, device.node, cause, on_the_way=True)
        return [loss, self._return_event(device, now_s)]

    def observe_end(self, now_s: float, address: str, cause: str) -> list[Order]:
        """Observe that the process at an address has ended."""
        device = self._device_at.get(address)
        return self._replace_process(device, now_s, cause) if device else []

    def observe_unloading(self, now_s: float, address: str) -> list[Order]:
        """Observe that a device has unloaded our stages, as it could not reach us for long."""
        device, cause = self._device_at.get(address), "it could not reach this client for long"
        return self._replace_process(device, now_s, cause, keep=True) if device else []

    def cut_off(self, now_s: float, address: str) -> list[Order]:
        """Observe that a suspected device's node is cut off; the device may survive there."""
        device = self._device_at.get(address)
        if device is None or device.state is not _S.SUSPECTED:
            return []
        if self._restarts:
            device.restart_s = self._schedule_tick(now_s + self._device_timeout_s)
        return [Exclude(now_s, device.name, device.node, device.cause)]

    def observe_removal(self, now_s: float, name: str, cause: str) -> list[Order]:
        """Observe that a device's node has left the cluster."""
        device = self._devices.get(name)
        if device is None or device.state is _S.REMOVED:
            return []
        self._device_at.pop(device.address, None)
        device.state, device.restart_s, device.exclude_s = _S.REMOVED, inf, inf
        device.steady_s = inf
        return [DeviceRemoved(now_s, device.name, device.node, cause)]

    def tick(self, now_s: float) -> list[Order]:
        """Observe the time: restarts and exclusions may be due."""
        if now_s < self.next_time_s:
            return []
        devices = self._devices.values()
        orders = [order for device in devices for order in self._apply_due_changes(device, now_s)]
        times = (min(d.restart_s, d.exclude_s, d.steady_s) for d in devices)
        self.next_time_s = min(times, default=inf)
        return orders

    def _schedule_tick(self, time_s: float) -> float:
        """Schedule a call of `tick` by a time; return the time."""
        self.next_time_s = min(self.next_time_s, time_s)
        return time_s

    def _replace_process(
        self, device: _Device, now_s: float, cause: str, *, keep: bool = False
    ) -> list[Order]:
        """Replace a process, at once if it is the first time of late."""
        orders: list[Order] = []
        if device.state is _S.LIVE:
            orders.append(self._loss_event(device, now_s, cause, may_live=keep))
            if now_s - device.since_s >= _STEADY_S:
                device.num_starts = 0
        elif device.state is _S.SUSPECTED:
            orders.append(DeviceEnded(now_s, device.name))
        del self._device_at[device.address]
        self.given_up.add(device.address)
        device.state, device.cause, device.keep = _S.RESTARTING, cause, keep
        device.steady_s = inf
        device.exclude_s = self._schedule_tick(now_s + _EXCLUDED_AFTER_S)
        return orders + self._schedule_restart(device, now_s)

    def _schedule_restart(self, device: _Device, now_s: float) -> list[Order]:
        """Restart a device now, or after a pause that grows with each restart in a row."""
        pause_s = _PAUSE_S * 2 ** min(device.num_starts - 1, 10) if device.num_starts else 0.0
        device.num_starts += 1
        device.restart_s = self._schedule_tick(now_s + min(pause_s, _LONGEST_PAUSE_S))
        return self._restart(device, now_s)

    def _apply_due_changes(self, device: _Device, now_s: float) -> list[Order]:
        orders = self._restart(device, now_s)
        if now_s >= device.exclude_s:
            device.exclude_s = inf
            orders.append(Exclude(now_s, device.name, device.node, device.cause))
        if now_s >= device.steady_s:
            device.steady_s = inf
            orders.append(DeviceSteady(now_s, device.name))
        return orders

    def _restart(self, device: _Device, now_s: float) -> list[Order]:
        if now_s < device.restart_s:
            return []
        if device.state is _S.SUSPECTED:
            return self._replace_process(device, now_s, device.cause)
        device.restart_s = inf
        keep, device.keep = device.keep, False
        return [Restart(device.name, device.address, device.cause, keep)]

    def _return_event(self, device: _Device, now_s: float) -> DeviceReturned:
        return DeviceReturned(now_s, device.name, is_steady=device.steady_s == inf)

    def _loss_event(
        self, device: _Device, now_s: float, cause: str, *, may_live: bool = False
    ) -> DeviceLost:
        return DeviceLost(now_s, device.name, device.node, cause, may_live=may_live)
