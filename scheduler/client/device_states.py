"""State machine of a deployment's devices: whether each has its stages and current addresses.

::

    LOADED ────────> ABSENT ─────────> EXCLUDED     lost, excluded
    LOADED <──────── ABSENT <───────── EXCLUDED     returned, loaded
    LOADED <──────── STALE  <───────── ABSENT       returned once opened, returned

`LOADED`: the device has loaded its stages and has the addresses of the devices that they send to.
`ABSENT`: it is lost. `STALE`: it is back, but another device has moved meanwhile, so it must be
opened again first. `EXCLUDED`: the deployment is planned without it. Pure: no I/O and no locks.

Events come from the supervisor's thread and from those that load stages, so the deployment calls
the methods that change a state under one lock (`RayDeployment`). Reading needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class LoadState(Enum):
    """State of a device in a deployment."""

    LOADED = "loaded"
    STALE = "stale"
    ABSENT = "absent"
    EXCLUDED = "excluded"


class DeploymentDevices:
    """The devices of one deployment; those that were never lost are `LOADED`."""

    def __init__(self) -> None:
        self._states: dict[str, LoadState] = {}
        #: Devices that missed the new address of another, or failed to open their stages.
        self._unopened: set[str] = set()

    def state(self, device: str) -> LoadState:
        """Return the state of a device."""
        return self._states.get(device, LoadState.LOADED)

    @property
    def excluded(self) -> frozenset[str]:
        """The devices that the deployment is planned without."""
        return frozenset(d for d, s in self._items() if s is LoadState.EXCLUDED)

    @property
    def unavailable(self) -> frozenset[str]:
        """The devices that cannot run requests now."""
        return frozenset(d for d, s in self._items() if s is not LoadState.LOADED)

    def _items(self) -> list[tuple[str, LoadState]]:
        """Return the devices with their states; a copy, because other threads change them."""
        return list(self._states.items())

    def mark_lost(self, device: str) -> None:
        """Handle the loss of a device."""
        if self.state(device) is not LoadState.EXCLUDED:
            self._states[device] = LoadState.ABSENT

    def exclude(self, devices: Iterable[str]) -> None:
        """Plan without some devices from now on."""
        self._states.update(dict.fromkeys(devices, LoadState.EXCLUDED))

    def mark_loaded(self, device: str) -> None:
        """Handle that an excluded device has loaded its stages; it has not returned yet."""
        if self.state(device) is LoadState.EXCLUDED:
            self._states[device] = LoadState.ABSENT

    def mark_moved(self, device: str, devices: Iterable[str]) -> list[str]:
        """Handle the new address of a device; return the others, of `devices`, to open again.

        Devices that are unavailable miss the address.
        """
        others = [other for other in devices if other != device]
        self._unopened |= self.unavailable.intersection(others)
        return [other for other in others if other not in self.unavailable]

    def mark_opening(self, device: str) -> None:
        """Handle that a device is about to get all addresses; see `mark_open_failed`.

        A device that moves meanwhile makes it unopened again.
        """
        self._unopened.discard(device)

    def mark_open_failed(self, device: str) -> None:
        """Handle that a device did not get the addresses."""
        self._unopened.add(device)

    def mark_returned(self, device: str) -> bool:
        """Handle the return of a device; False if it must be opened first."""
        if device not in self._unopened:
            self._states[device] = LoadState.LOADED
        elif self.state(device) is not LoadState.EXCLUDED:
            self._states[device] = LoadState.STALE
        return device not in self._unopened
