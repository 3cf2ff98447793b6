"""Estimated costs of a model on devices, for plans without a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.planning.cost.costs import CLIENT, Costs, DeviceCosts, DeviceIdentity, Time
from hetero.planning.cost.estimation import DEFAULT_SPEED, count_work, with_input_shapes
from hetero.planning.cost.transfer_times import DEFAULT_TRANSFER


def estimate_costs(
    model: Model,
    supports: Mapping[str, Support],
    identities: Mapping[str, DeviceIdentity],
    shapes: Mapping[str, Sequence[int]],
) -> Costs:
    """Estimate costs from numbers of operations and bytes; all devices have the same speed.

    `supports`, `identities`: of each device.
    """
    shaped = with_input_shapes(model, shapes)
    nodes = [shaped.nodes[p] for p in request_dependent_positions(shaped)]
    times = {n.name: Time(DEFAULT_SPEED(count_work(shaped, n)), "estimated") for n in nodes}
    ends = (*supports, CLIENT)
    return Costs(
        model=model.name,
        model_hash=model.content_hash,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        devices={
            device: DeviceCosts(
                identities[device], {n: t for n, t in times.items() if n in support}
            )
            for device, support in supports.items()
        },
        transfers={(a, b): DEFAULT_TRANSFER for a in ends for b in ends if a != b},
    )
