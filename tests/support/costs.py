"""Costs by hand for the tests here: no device is timed, so that every figure is known."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    DeviceIdentity,
    Line,
    Pace,
    Time,
    Transfer,
)
from hetero.planning.task import Constraints, Task

FREE = Line(0.0, 0.0, "measured")


def identity(name: str) -> DeviceIdentity:
    return DeviceIdentity(name.partition(".")[0], "1", "f", "local", 1)


def costs(
    model: Model,
    times_s: Mapping[str, Mapping[str, float]],
    *,
    wire: Line = FREE,
    call_s: float = 0.0,
    fused: tuple[tuple[str, ...], ...] = (),
) -> Costs:
    """Return costs from {device: {node: seconds}}; nodes left out are not supported.

    `wire`: also what is between the client and a device.
    `call_s`: what a call of a subgraph takes while requests follow each other.
    """
    pace = Pace(overhead_s=call_s)
    ends = (*times_s, CLIENT)
    return Costs(
        model.name,
        model.content_hash,
        {},
        {
            device: DeviceCosts(
                identity(device),
                {name: Time(seconds, "measured") for name, seconds in nodes.items()},
                alone=pace,
                company=pace,
                fused=fused,
            )
            for device, nodes in times_s.items()
        },
        {(a, b): Transfer(wire, wire) for a in ends for b in ends if a != b},
    )


def task(model: Model, given: Costs, constraints: Constraints | None = None) -> Task:
    """Return a task in which devices support what has a time, and all that no request runs."""
    return Task(
        model,
        tuple(given.devices),
        {
            name: Support(dict.fromkeys(device.nodes, name))
            for name, device in given.devices.items()
        },
        given,
        constraints or Constraints(),
    )
