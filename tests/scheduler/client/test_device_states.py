"""State machine of a deployment's devices: each transition, and random sequences of events."""

from __future__ import annotations

import random
from collections.abc import Callable

from hetero.scheduler.client.device_states import DeploymentDevices, LoadState
from tests.support.rows import for_each_row

LOADED, STALE, ABSENT, EXCLUDED = LoadState


def missed_address(devices: DeploymentDevices) -> None:
    devices.mark_lost("D")
    devices.mark_moved("E", ["D", "E"])


#: State of device D -> the events that lead to it. The last three missed the new address of E.
STATES: dict[str, tuple[LoadState, Callable[[DeploymentDevices], object]]] = {
    "loaded": (LOADED, lambda devices: None),
    "absent": (ABSENT, lambda devices: devices.mark_lost("D")),
    "excluded": (EXCLUDED, lambda devices: devices.exclude(["D"])),
    "absent, unopened": (ABSENT, missed_address),
    "stale": (STALE, lambda devices: (missed_address(devices), devices.mark_returned("D"))),
    "excluded, unopened": (
        EXCLUDED,
        lambda devices: (missed_address(devices), devices.exclude(["D"])),
    ),
}
EVENTS: dict[str, Callable[[DeploymentDevices], object]] = {
    "lost": lambda devices: devices.mark_lost("D"),
    "excluded": lambda devices: devices.exclude(["D"]),
    "loaded": lambda devices: devices.mark_loaded("D"),
    "returned": lambda devices: devices.mark_returned("D"),
    "opened": lambda devices: devices.mark_opening("D"),
}
#: State -> the state after each event.
TRANSITIONS = {
    "loaded": (ABSENT, EXCLUDED, LOADED, LOADED, LOADED),
    "absent": (ABSENT, EXCLUDED, ABSENT, LOADED, ABSENT),
    "excluded": (EXCLUDED, EXCLUDED, ABSENT, LOADED, EXCLUDED),
    "absent, unopened": (ABSENT, EXCLUDED, ABSENT, STALE, ABSENT),
    "stale": (ABSENT, EXCLUDED, STALE, STALE, STALE),
    "excluded, unopened": (EXCLUDED, EXCLUDED, ABSENT, EXCLUDED, EXCLUDED),
}


@for_each_row("state", TRANSITIONS)
@for_each_row("event", EVENTS)
def test_each_event_in_each_state(state, event):
    devices = DeploymentDevices()
    before, reach = STATES[state]
    reach(devices)
    assert devices.state("D") is before
    EVENTS[event](devices)
    after = TRANSITIONS[state][list(EVENTS).index(event)]
    assert devices.state("D") is after
    assert ("D" in devices.unavailable) == (after is not LOADED)
    assert ("D" in devices.excluded) == (after is EXCLUDED)


def test_stale_device_returns_once_it_is_opened():
    devices = DeploymentDevices()
    missed_address(devices)
    assert not devices.mark_returned("D")
    devices.mark_opening("D")
    devices.mark_open_failed("D")
    assert not devices.mark_returned("D")
    devices.mark_opening("D")
    assert devices.mark_returned("D")
    assert devices.state("D") is LOADED


def test_move_during_open_needs_another_open():
    devices = DeploymentDevices()
    missed_address(devices)
    devices.mark_opening("D")
    devices.mark_moved("E", ["D", "E"])
    assert not devices.mark_returned("D")


def test_moved_device_is_announced_to_available_devices():
    devices = DeploymentDevices()
    devices.mark_lost("B")
    devices.exclude(["C"])
    assert devices.mark_moved("A", ["A", "B", "C", "D"]) == ["D"]


@for_each_row("seed", range(20))
def test_no_loaded_device_lacks_an_address(seed):
    """Play a network: each device has the addresses of the others as of its last opening."""
    rng, names = random.Random(seed), ["A", "B", "C"]
    devices = DeploymentDevices()
    address = dict.fromkeys(names, 0)
    known_by = {name: dict(address) for name in names}
    for _ in range(200):
        name = rng.choice(names)
        match rng.randrange(5):
            case 0:
                devices.mark_lost(name)
            case 1:
                devices.exclude([name])
            case 2 if devices.state(name) is not LOADED:  # restarted at another address
                address[name] += 1
                devices.mark_opening(name)
                known_by[name] = dict(address)
                for other in devices.mark_moved(name, names):
                    known_by[other] = dict(address)
                devices.mark_loaded(name)
            case 3 if devices.state(name) is STALE:
                devices.mark_opening(name)
                known_by[name] = dict(address)
            case 4:
                devices.mark_returned(name)
        for loaded in names:
            if devices.state(loaded) is LOADED:
                others = {n: a for n, a in known_by[loaded].items() if n != loaded}
                assert others == {n: a for n, a in address.items() if n != loaded}
