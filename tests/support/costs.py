"""Costs with fixed numbers, for tests that measure no device."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    DeviceIdentity,
    LinearCost,
    LoadFactors,
    Time,
    Transfer,
)
from hetero.planning.task import Constraints, Task

FREE = LinearCost(0.0, 0.0, "measured")


def identity(name: str) -> DeviceIdentity:
    return DeviceIdentity(name.partition(".")[0], "1", "f", "local", 1)


def costs(
    model: Model,
    times_s: Mapping[str, Mapping[str, float]],
    *,
    wire: LinearCost = FREE,
    call_s: float = 0.0,
    fused: tuple[tuple[str, ...], ...] = (),
) -> Costs:
    """Return costs from {device: {node: seconds}}; nodes left out are not supported.

    `wire`: cost of all transfers, including those of the client.
    `call_s`: call overhead of a subgraph under load.
    """
    load = LoadFactors(overhead_s=call_s)
    ends = (*times_s, CLIENT)
    return Costs(
        model.name,
        model.content_hash,
        {},
        {
            device: DeviceCosts(
                identity(device),
                {name: Time(seconds, "measured") for name, seconds in nodes.items()},
                single_load=load,
                concurrent_load=load,
                fused_groups=fused,
            )
            for device, nodes in times_s.items()
        },
        {(a, b): Transfer(wire, wire) for a in ends for b in ends if a != b},
    )


def task(model: Model, model_costs: Costs, constraints: Constraints | None = None) -> Task:
    """Return a task in which devices support the nodes that have a time."""
    return Task(
        model,
        tuple(model_costs.devices),
        {
            name: Support(dict.fromkeys(device.nodes, name))
            for name, device in model_costs.devices.items()
        },
        model_costs,
        constraints or Constraints(),
    )
